"""A process whose clock is wrong by ten minutes acquires nothing early and nothing late, and writes right times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from faultlab.clock import WallClock
from faultlab.laboratory import Lab
from psched.store import ScheduleStore
from tests.stores.bench import LONG_AGO, Bench

PROBE = Path(__file__).with_name("clock_probe.py")
ROOT = Path(__file__).parents[2]
OFF = 600
NEAR = 60
"""Seconds. A time that differs less than this from the true time was not measured by a clock that is wrong by 600 s."""


@pytest.fixture(scope="module")
def node(lab: Lab) -> Iterator[Node]:
    """A process with its own wall clock. Tests share it, because an interpreter takes longer to start than a test."""
    clock = lab.wall_clock()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **clock.environment}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, str(PROBE)], env=environment, **pipes) as process:
        yield Node(clock, process)
        process.communicate()


@dataclass
class Node:
    """The process that runs clock_probe.py."""

    clock: WallClock
    process: subprocess.Popen[str]

    def probe(self, bench: Bench, offset: float) -> dict[str, Any]:
        """Let the process call all methods with a clock that is wrong by `offset` seconds. Return what it saw."""
        self.clock.set(offset)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps([bench.type, bench.url, bench.table]), file=self.process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer


@pytest.mark.parametrize("offset", [OFF, -OFF], ids=["ahead", "behind"])
def test_the_clock_of_a_node_decides_nothing(bench: Bench, store: ScheduleStore, node: Node, offset: float) -> None:
    """SQLite's clock is the host's, so there the same check must find faults. This shows that it can find some."""
    add_rows(bench, store)
    before = store.now()
    seen = node.probe(bench, offset)
    assert abs(seen["node"] - time.time() - offset) < NEAR, "the shim did not shift the clock"
    faults = judge(bench, seen, before)
    assert bool(faults) is (bench.database == "sqlite"), faults


def add_rows(bench: Bench, store: ScheduleStore) -> None:
    """Add four rows that have been due for a second, and one that is due in five minutes."""
    now = int(store.now())
    for n in range(4):
        bench.add(store, f"due{n}", due=now - 1, next_time=LONG_AGO)
    bench.add(store, "soon", due=now + 300, next_time=LONG_AGO)


def judge(bench: Bench, seen: dict[str, Any], before: float) -> list[str]:
    """Return what is wrong, by the true clock, in what the probe saw."""
    faults = []
    if seen["acquired"] != ["due0", "due1", "due2", "due3"]:
        faults.append(f"acquired {seen['acquired']}")
    expected = {"now": 0, "lease ends": 100, "extended to": 100, "released at": 0, "retried at": 0}
    if not bench.compat:
        expected["given back at"] = 1
    for name, after in expected.items():
        times = seen.get(name, [])
        values = times if isinstance(times, list) else [times]
        faults += [f"{name}: {value}" for value in values if value is None or abs(value - before - after) > NEAR]
    if not -0.01 <= seen["again after"] <= NEAR:
        faults.append(f"a lease of a second was over after {seen['again after']} s")
    return faults

"""Several threads and processes claim concurrently: no row is claimed twice, and none is lost."""

from __future__ import annotations

import collections
import json
import os
import subprocess
import threading
from pathlib import Path

from faultlab import forkserver_client
from psched.model import Claim
from psched.store import ScheduleStore
from tests.stores.bench import FAR_OFF, LONG_AGO, Bench, keys_of, soon

CLAIMER = Path(__file__).with_name("claiming_process.py")
FORKING = Path(__file__).with_name("forking_client.py")


def test_threads_with_stores_of_their_own_share_no_row_and_lose_none(bench: Bench, store: ScheduleStore) -> None:
    keys = [f"key{n:03}" for n in range(200)]
    bench.fill(store, keys, lambda i: LONG_AGO + i % 7)
    taken: list[Claim] = []
    claimers = [threading.Thread(target=claim_all, args=(bench.open(), 1 + 8 * n, taken)) for n in range(4)]
    run(claimers)
    assert sorted(keys_of(taken)) == keys


def test_threads_may_share_one_store(bench: Bench, store: ScheduleStore) -> None:
    keys = [f"key{n:03}" for n in range(100)]
    bench.fill(store, keys, lambda i: LONG_AGO)
    taken: list[Claim] = []
    run([threading.Thread(target=settle_all, args=(store, taken)) for _ in range(4)])
    assert sorted(keys_of(taken)) == keys
    assert store.acquire(10, 100) == []
    assert all(row.next_time == FAR_OFF for row in store.list())


def test_processes_share_no_row_and_lose_none(bench: Bench, store: ScheduleStore) -> None:
    keys = [f"key{n:03}" for n in range(240)]
    bench.fill(store, keys, lambda i: LONG_AGO + i % 5)
    claimers = [start_claimer(bench, f"host/{n}/x") for n in range(3)]
    try:
        assert [claimer.stdout and claimer.stdout.readline() for claimer in claimers] == [b"ready\n"] * 3
        for claimer in claimers:
            assert claimer.stdin is not None
            claimer.stdin.write(b"go\n")
            claimer.stdin.flush()
        answers = [json.loads(claimer.communicate(timeout=30)[0]) for claimer in claimers]
    finally:
        for claimer in claimers:
            with claimer:
                claimer.kill()
    assert collections.Counter(key for answer in answers for key in answer) == collections.Counter(keys)
    assert all(row.next_time == FAR_OFF for row in store.list())


def test_a_process_that_was_forked_off_has_connections_of_its_own(bench: Bench, store: ScheduleStore) -> None:
    bench.fill(store, ["a", "b"], lambda _: LONG_AGO)
    environ = {**os.environ, "PYTHONPATH": str(FORKING.parents[2])}
    command = [str(FORKING), bench.type, bench.url, bench.table]
    with forkserver_client.start(command, Path.cwd(), environ, stdout=subprocess.PIPE) as process:
        answer = process.communicate(timeout=60)[0]
    assert json.loads(answer) == [0, 40, 42]


def start_claimer(bench: Bench, holder: str) -> forkserver_client.Process:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    environ = {**os.environ, "PYTHONPATH": str(CLAIMER.parents[2])}
    return forkserver_client.start(
        [str(CLAIMER), bench.type, bench.url, bench.table, holder], Path.cwd(), environ, **pipes
    )


def claim_all(store: ScheduleStore, limit: int, taken: list[Claim]) -> None:
    """Acquire until nothing is due. Add the claims to `taken`."""
    mine: list[str] = []
    while claims := store.acquire(limit, 300):
        mine += keys_of(claims)
        taken += claims


def settle_all(store: ScheduleStore, taken: list[Claim]) -> None:
    """Acquire and advance one row after another, until nothing is due. Add the claims to `taken`."""
    while claims := store.acquire(1, 300):
        for claim in claims:
            store.advance(claim, FAR_OFF, FAR_OFF, soon())
        taken += claims


def run(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()

"""`scripts/faults`: one trial on each store that is named, and its result."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from faultlab.laboratory import Lab
from faultlab.leaks import MARK, Holdings, kill_since
from faultlab.small_disk import can_mount
from faultlab.trials.checker import Bounds
from faultlab.trials.disk_faults import DiskFull
from faultlab.trials.environment import STORES, TrialEnvironment
from faultlab.trials.fault import TrialFault
from faultlab.trials.plan import FAULTS, plan
from faultlab.trials.trial import Trial, TrialOutcome

RUNS_A_SECOND = 2
"""With fewer, a trial proves nothing."""


def main() -> int:
    """Run what the command line asks for; returns 0 when every trial was passed."""
    arguments = _parser().parse_args()
    seed = random.randrange(1_000_000) if arguments.seed is None else arguments.seed
    failed = False
    with Lab() as lab:
        for store in arguments.store or list(STORES):
            try:
                outcome = _try(lab, store, seed, arguments)
            except pytest.skip.Exception as reason:
                print(f"{store}: {reason}", flush=True)
                continue
            failed |= bool(outcome.violations)
    return 1 if failed else 0


def _try(lab: Lab, store: str, seed: int, arguments: argparse.Namespace) -> TrialOutcome:
    steps = plan(seed, arguments.minutes * 60, _chosen(store, arguments.faults))
    print(f"{store}, seed {seed}, {arguments.minutes:g} minutes:", *steps, sep="\n  ", flush=True)
    bounds = Bounds(runs=int(arguments.minutes * 60 * RUNS_A_SECOND))
    folder = Path(tempfile.mkdtemp(prefix=f"psched-trial-{store}-"))
    small = any(step.fault is DiskFull for step in steps)
    with (
        _nothing_left(lab),
        TrialEnvironment(
            lab, store, folder, arguments.type, arguments.nodes, small_disk=small, seed=seed
        ) as environment,
    ):
        outcome = Trial(environment, steps, seed, bounds).run()
    print(outcome, flush=True)
    print(f"  again: scripts/faults --store {store} --seed {seed} --minutes {arguments.minutes:g}", end="")
    print(f" --type {arguments.type}" if arguments.type else "", end="")
    print(f" --faults '{arguments.faults}'" if arguments.faults else "", flush=True)
    if outcome.violations or arguments.keep:
        print(f"  records, logs: {folder}", flush=True)
    else:
        shutil.rmtree(folder)
    return outcome


def _chosen(store: str, names: str | None) -> Sequence[type[TrialFault]]:
    """Return the faults that can happen to a store, of those that are named by a part of their kind."""
    able = FAULTS
    if not can_mount():
        print("no full disks: a small one can be mounted on Linux by root only", flush=True)
        able = tuple(fault for fault in FAULTS if fault is not DiskFull)
    wanted = [name.strip() for name in (names or "").split(",")]
    possible = [fault for fault in able if store in fault.stores]
    return [fault for fault in possible if any(name in fault.kind for name in wanted)]


@contextmanager
def _nothing_left(lab: Lab) -> Iterator[None]:
    """Kill what a trial has left behind, also when it was interrupted."""
    os.environ[MARK] = uuid.uuid4().hex
    before = Holdings.now(lab)
    try:
        yield
    finally:
        kill_since(before, lab)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/faults",
        description="Breaks everything around psched, as a seed decides, and judges what handlers recorded.",
    )
    parser.add_argument("--minutes", type=float, default=5, help="how long faults go on, for each store (5)")
    parser.add_argument("--seed", type=int, help="repeats the plan of an earlier trial (default: a new one)")
    parser.add_argument("--store", action="append", choices=list(STORES), help="again for several (default: all)")
    parser.add_argument("--type", help="the store's type:, such as rdb_compat (default: rdb, or redis)")
    parser.add_argument("--nodes", type=int, default=2, help="how many masters (2)")
    parser.add_argument("--faults", metavar="WORDS", help="only those whose kind has one of these words, by commas")
    parser.add_argument("--keep", action="store_true", help="keep records and logs also when all is well")
    return parser


if __name__ == "__main__":
    sys.exit(main())

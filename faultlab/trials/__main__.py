"""`scripts/faults`: runs one trial on each named store, and prints the results."""

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
"""The minimum number of runs per second of a trial. With fewer runs, a trial proves nothing."""


def main() -> int:
    """Run the trials that the command line names. Return 0 if every trial was passed, otherwise 1."""
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
    """Return the faults that can happen to a store. `names`: only faults whose kind contains one of these words."""
    able = FAULTS
    if not can_mount():
        print("no trials with full disks: only root on Linux can mount a small disk", flush=True)
        able = tuple(fault for fault in FAULTS if fault is not DiskFull)
    wanted = [name.strip() for name in (names or "").split(",")]
    possible = [fault for fault in able if store in fault.stores]
    return [fault for fault in possible if any(name in fault.kind for name in wanted)]


@contextmanager
def _nothing_left(lab: Lab) -> Iterator[None]:
    """In the end, or at an interruption, kill all processes that the trial has left behind."""
    os.environ[MARK] = uuid.uuid4().hex
    before = Holdings.now(lab)
    try:
        yield
    finally:
        kill_since(before, lab)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/faults",
        description="Lets everything around psched fail, as a seed decides, and checks the records of handlers.",
    )
    parser.add_argument("--minutes", type=float, default=5, help="how long faults happen, for each store (default: 5)")
    parser.add_argument("--seed", type=int, help="repeat the plan of the trial with this seed (default: a new seed)")
    parser.add_argument("--store", action="append", choices=list(STORES), help="may be repeated (default: all)")
    parser.add_argument("--type", help="the `type:` of the store, such as rdb_compat (default: rdb, or redis)")
    parser.add_argument("--nodes", type=int, default=2, help="the number of masters (default: 2)")
    parser.add_argument(
        "--faults", metavar="WORDS", help="only faults whose kind has one of these words (separated by commas)"
    )
    parser.add_argument("--keep", action="store_true", help="keep records and logs even if the trial is passed")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""`scripts/compare`: two revisions in pairs, by the processor time per task.

Timings of one version alone say little on a machine that others use, too. Here both drain the same backlog in turns on
one server, and the ratios of the pairs are what counts: a difference smaller than their spread is none.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.databases import STORES, Grounds, Place
from faultlab.laboratory import Lab
from tests.programs import ROOT

_DRAIN = Path(__file__).with_name("drain.py")
_METRICS = ("both", "psched", "server", "tasks/s")


def main() -> None:
    """Compare, and print a line for each store and metric."""
    wanted = _parser().parse_args()
    with _tree(wanted.base) as base, tempfile.TemporaryDirectory(prefix="psched-compare-") as folder, Lab() as lab:
        grounds = Grounds(lab, Path(folder))
        try:
            for store in wanted.store or STORES:
                _compare(grounds, store, base, wanted)
        finally:
            grounds.close()


def _compare(grounds: Grounds, store: str, base: Path, wanted: argparse.Namespace) -> None:
    pairs: list[tuple[dict[str, float], dict[str, float]]] = []
    for number in range(wanted.pairs + 1):
        found: dict[Path, dict[str, float]] = {}
        for tree in (base, ROOT) if number % 2 == 0 else (ROOT, base):
            with grounds.place(store) as place:
                found[tree] = _drain(tree, place, wanted)
        if number:  # the first pair compiles the modules, and fills the server's memory
            pairs.append((found[base], found[ROOT]))
    print(f"{store}: {wanted.type}, {wanted.processors} processors, {wanted.tasks} tasks, {wanted.pairs} pairs")
    for metric in _METRICS:
        print(f"  {metric:8} {_verdict([(before[metric], now[metric]) for before, now in pairs])}", flush=True)


def _verdict(pairs: Sequence[tuple[float, float]]) -> str:
    """Say what the pairs say: their medians, and the ratios without the highest and the lowest tenth."""
    ratios = sorted(now / before for before, now in pairs if before)
    if not ratios:
        return "–"
    cut = len(ratios) // 10
    low, high = ratios[cut], ratios[-1 - cut]
    before, now = (statistics.median(values) for values in zip(*pairs, strict=True))
    word = "not distinguishable" if low <= 1 <= high else "MORE" if low > 1 else "less"
    return f"{before:10.3f} → {now:10.3f}   × {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})   {word}"


def _drain(tree: Path, place: Place, wanted: argparse.Namespace) -> dict[str, float]:
    options = ["--type", wanted.type, "--tasks", str(wanted.tasks), "--processors", str(wanted.processors)]
    if place.server is not None:
        options += ["--server", str(place.server.pid)]
    command = [sys.executable, "-P", str(_DRAIN), str(place.folder), place.url, *options]
    environ = {**os.environ, "PYTHONPATH": str(tree)}
    output = subprocess.run(command, env=environ, cwd=place.folder, check=True, stdout=subprocess.PIPE).stdout
    found: dict[str, float] = json.loads(output)
    return found


@contextmanager
def _tree(revision: str) -> Iterator[Path]:
    """Yield a folder with the sources of a revision."""
    with tempfile.TemporaryDirectory(prefix="psched-base-") as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--quiet", "--detach", tree, revision], check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", tree], check=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/compare", description="Compares the working tree with a revision.")
    parser.add_argument("base", help="the revision to compare with, such as main or a commit")
    parser.add_argument("--store", action="append", choices=STORES, help="again for several (default: all)")
    parser.add_argument("--type", choices=("returns", "finishes", "waits"), default="returns", help="the handler")
    parser.add_argument("--tasks", type=int, default=60_000, help="how many are drained each time (60,000)")
    parser.add_argument("--processors", type=int, default=2, help="children of the daemon (2)")
    parser.add_argument("--pairs", type=int, default=10, help="how often both are measured (10)")
    return parser


if __name__ == "__main__":
    main()

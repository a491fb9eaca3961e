"""`scripts/compare`: compares two revisions or two configurations by the processor time per task.

If other programs use the machine, too, timings of one variant alone say little. So both variants drain the same
backlog, in turns on one server, or at the same time on two servers. Each pair of drains gives a ratio. A difference
that is smaller than the spread of these ratios says nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.databases import STORES, Grounds, Place
from faultlab.laboratory import Lab
from tests.programs import ROOT

_DRAIN = Path(__file__).with_name("drain.py")
_METRICS = ("both", "psched", "server", "tasks/s")
_PARTS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "metrics": ({"metrics_file": "psched.metrics"}, {"metrics_file": "none"}),
    "statistics": ({}, {"queue": {"stats_retention": 0}}),
}
"""The parts that `--without` may name, each with the settings that turn the part on, and those that turn it off."""


@dataclass(frozen=True)
class Variant:
    """One of the two things to compare: a folder with the sources of psched, and settings of the daemon."""

    tree: Path
    settings: Mapping[str, Any] = field(default_factory=dict)


def main() -> None:
    """Compare, and print a line for each store and metric."""
    parser = _parser()
    wanted = parser.parse_args()
    if bool(wanted.base) == bool(wanted.without):
        parser.error("name either a revision to compare with, or by --without the parts to turn off")
    with _variants(wanted) as variants, ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="psched-compare-")))
        lab = stack.enter_context(Lab())
        grounds = [_grounds(lab, folder / f"server-{number}", stack) for number in range(2 if wanted.at_once else 1)]
        for store in wanted.store or STORES:
            _compare((grounds[0], grounds[-1]), store, variants, wanted)


def _grounds(lab: Lab, folder: Path, stack: ExitStack) -> Grounds:
    folder.mkdir()
    grounds = Grounds(lab, folder)
    stack.callback(grounds.close)
    return grounds


def _compare(
    grounds: tuple[Grounds, Grounds], store: str, variants: tuple[Variant, Variant], wanted: argparse.Namespace
) -> None:
    def measure(which: int) -> dict[str, float]:
        with grounds[(which + number) % 2].place(store) as place:
            return _drain(variants[which], place, wanted)

    pairs: list[tuple[dict[str, float], dict[str, float]]] = []
    with ThreadPoolExecutor(2 if wanted.at_once else 1) as threads:
        for number in range(wanted.pairs + 1):
            order = (0, 1) if number % 2 == 0 else (1, 0)
            found = dict(zip(order, threads.map(measure, order), strict=True))
            if number:  # the first pair is a warm-up: it compiles modules, and fills the server's memory
                pairs.append((found[0], found[1]))
    base = wanted.base or f"without {' and '.join(wanted.without)}"
    print(
        f"{store}: {wanted.type}, {wanted.processors} processors, {wanted.tasks} tasks, {wanted.pairs} pairs; {base} →"
    )
    for metric in _METRICS:
        print(f"  {metric:8} {_verdict([(before[metric], now[metric]) for before, now in pairs])}", flush=True)


def _verdict(pairs: Sequence[tuple[float, float]]) -> str:
    """Return a line with both medians, the median ratio, and the range of ratios without the outer tenths."""
    ratios = sorted(now / before for before, now in pairs if before)
    if not ratios:
        return "–"
    cut = len(ratios) // 10
    low, high = ratios[cut], ratios[-1 - cut]
    before, now = (statistics.median(values) for values in zip(*pairs, strict=True))
    word = "not distinguishable" if low <= 1 <= high else "MORE" if low > 1 else "less"
    return f"{before:10.3f} → {now:10.3f}   × {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})   {word}"


def _drain(variant: Variant, place: Place, wanted: argparse.Namespace) -> dict[str, float]:
    options = ["--type", wanted.type, "--tasks", str(wanted.tasks), "--processors", str(wanted.processors)]
    options += ["--settings", json.dumps(variant.settings)]
    if place.server is not None:
        options += ["--server", str(place.server.pid)]
    command = [sys.executable, "-P", str(_DRAIN), str(place.folder), place.url, *options]
    environ = {**os.environ, "PYTHONPATH": str(variant.tree)}
    output = subprocess.run(command, env=environ, cwd=place.folder, check=True, stdout=subprocess.PIPE).stdout
    found: dict[str, float] = json.loads(output)
    return found


@contextmanager
def _variants(wanted: argparse.Namespace) -> Iterator[tuple[Variant, Variant]]:
    """Yield the variant to compare with, and the variant that is compared."""
    if wanted.base:
        with _tree(wanted.base) as base:
            yield Variant(base), Variant(ROOT)
    else:
        yield Variant(ROOT, _settings(wanted.without)), Variant(ROOT, _settings(()))


def _settings(without: Sequence[str]) -> dict[str, Any]:
    """Return settings that turn off the parts named in `without`, and turn on all other parts."""
    settings: dict[str, Any] = {}
    for part, (on, off) in _PARTS.items():
        settings |= off if part in without else on
    return settings


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
    parser = argparse.ArgumentParser(
        prog="scripts/compare",
        description="Compares the working tree with a revision, or with itself while parts are off.",
    )
    parser.add_argument("base", nargs="?", help="the revision to compare with, such as main or a commit")
    off = "compare with this part turned off (may be repeated)"
    parser.add_argument("--without", action="append", choices=_PARTS, help=off)
    parser.add_argument("--store", action="append", choices=STORES, help="may be repeated (default: all)")
    parser.add_argument(
        "--type",
        choices=("returns", "finishes", "waits"),
        default="returns",
        help="the handler of the tasks (default: returns)",
    )
    parser.add_argument("--tasks", type=int, default=60_000, help="the size of the backlog (default: 60,000)")
    parser.add_argument("--processors", type=int, default=2, help="children of the daemon (default: 2)")
    parser.add_argument("--at-once", action="store_true", help="measure both variants of a pair at the same time")
    parser.add_argument("--pairs", type=int, default=10, help="how often both are measured (default: 10)")
    return parser


if __name__ == "__main__":
    main()

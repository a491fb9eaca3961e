"""`scripts/bench`: measures psched and bare driver loops on private servers."""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import (
    async_submit,
    idle_cost,
    insight_questions,
    large_table,
    latency,
    markdown,
    schedules_as_code,
    submit_rate,
    throughput,
    user_loads,
    web_pages,
)
from benchmarks.databases import BEHIND, STORES, Grounds
from benchmarks.peers.contenders import PEERS
from benchmarks.peers.peer_processes import install
from benchmarks.report import BenchmarkRecord
from benchmarks.runner import Measurement, in_groups, measure
from benchmarks.workload import Scale
from faultlab.laboratory import Lab

WORKLOADS = (
    *throughput.WORKLOADS,
    *submit_rate.WORKLOADS,
    *async_submit.WORKLOADS,
    *latency.WORKLOADS,
    *large_table.WORKLOADS,
    *idle_cost.WORKLOADS,
    *user_loads.WORKLOADS,
    *insight_questions.WORKLOADS,
    *web_pages.WORKLOADS,
    *schedules_as_code.WORKLOADS,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the chosen workloads. Return 1 if a measurement failed, else 0, even if a goal is missed."""
    chosen = _parser().parse_args(arguments)
    record = BenchmarkRecord()
    if chosen.read:
        for path in chosen.read:
            record.take(json.loads(path.read_text()))
    else:
        _run(chosen, record)
    lines = list(markdown.tables(record, WORKLOADS))
    print("\n".join(lines))
    print("\n".join(markdown.times(record.seconds())), file=sys.stderr)
    if chosen.markdown:
        chosen.markdown.write_text("\n".join(lines) + "\n")
    if chosen.json:
        chosen.json.write_text(json.dumps(record.as_json(), indent=1, ensure_ascii=False) + "\n")
    return 1 if record.failures else 0


def _run(chosen: argparse.Namespace, record: BenchmarkRecord) -> None:
    """Measure in rounds. Keep the results so far if the user interrupts, or if the time is over."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that SIGTERM, too, stops servers and workers
    if chosen.peers:
        install()
    with Lab() as lab, tempfile.TemporaryDirectory(prefix="psched-bench-", dir=chosen.folder) as folder:
        grounds = Grounds(lab, Path(folder))
        try:
            for group in _groups(chosen):
                measure(grounds, record, group, Scale(chosen.quick))
        except KeyboardInterrupt:
            print("interrupted; these are the results so far", file=sys.stderr)
        finally:
            grounds.close()


def _groups(chosen: argparse.Namespace) -> Iterator[Sequence[Measurement]]:
    """Yield the groups of measurements to make together, round after round, until the time is over."""
    end = time.monotonic() + chosen.minutes * 60
    for number in range(chosen.repeat or (1 if chosen.quick else 3)):
        for group in in_groups(_wanted(chosen, number), chosen.apart):
            if time.monotonic() > end:
                print("the time is over; these are the results so far", file=sys.stderr)
                return
            yield group


def _wanted(chosen: argparse.Namespace, number: int) -> Iterator[Measurement]:
    """Yield the measurements of the round with this number (from 0)."""
    for workload in WORKLOADS:
        if chosen.only and workload.name not in chosen.only:
            continue
        peers = PEERS.get(workload.name, ()) if chosen.peers else ()
        for store in chosen.store or STORES:
            for contender in (*workload.contenders, *peers):
                is_able = store in contender.stores or (store in BEHIND and contender.name == "psched")
                here = is_able and not (contender.once and number)
                if here and (not chosen.who or contender.name in chosen.who):
                    yield Measurement(workload, store, contender)


def _parser() -> argparse.ArgumentParser:
    lines = "\n".join(f"  {workload.name:14} {workload.what}" for workload in WORKLOADS)
    parser = argparse.ArgumentParser(
        "scripts/bench",
        description=__doc__,
        epilog=f"workloads:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--quick", action="store_true", help="small amounts, one round: shows only that everything works"
    )
    parser.add_argument("--only", action="append", choices=[each.name for each in WORKLOADS], metavar="WORKLOAD")
    parser.add_argument("--store", action="append", choices=(*STORES, *BEHIND))
    parser.add_argument("--who", action="append", metavar="NAME", help="a contender: psched, 'floor 1/1', PgQueuer, …")
    parser.add_argument("--repeat", type=int, metavar="N", help="the number of rounds (default: 3)")
    parser.add_argument(
        "--minutes",
        type=float,
        default=math.inf,
        metavar="N",
        help="begin no measurement after N minutes; show the results so far",
    )
    parser.add_argument(
        "--peers", action="store_true", help="also measure other queues and schedulers, in a virtualenv"
    )
    parser.add_argument("--apart", action="store_true", help="never run measurements side by side")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the tables to FILE")
    parser.add_argument(
        "--read",
        type=Path,
        action="append",
        metavar="FILE",
        help="measure nothing; show the results that --json wrote (may be repeated)",
    )
    parser.add_argument("--folder", type=Path, help="the folder of SQLite files (default: a temporary folder)")
    return parser


if __name__ == "__main__":
    sys.exit(main())

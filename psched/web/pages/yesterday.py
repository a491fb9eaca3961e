"""The page Yesterday: a Gantt chart of what ran, by schedule and by node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from psched.error_messages import InvalidValueError
from psched.insight import Timeline, TimelineRun
from psched.store.ledger import FAILED, SKIPPED
from psched.time_text import local_datetime
from psched.web.charts import Mark, Span, Tick, marks, ticks
from psched.web.pages.schedules import schedules_of
from psched.web.rendering import duration, page, when
from psched.web.shared_state import SharedState
from psched.web.visitor_input import moment_text, parse_moment, whole_number

HOURS: Final = (1, 3, 6, 12, 24)
"""The spans of time that can be chosen, in hours."""
_HOUR = 3600
_PAGE = 40
"""The maximum number of schedules of one page."""
_MOST_LANES = 8
"""The maximum number of runs on one node that are drawn side by side."""
_KEPT = 15.0
_LEGEND: Final = [
    (word, marks([Span(kind, 0, 1)], 0, 1))
    for kind, word in (
        ("waiting", "waited"),
        ("ran", "ran"),
        ("open", "runs now"),
        ("retrying", "tried before"),
        ("failed", "failed"),
        ("skipped", "skipped"),
        ("overlap", "overlapped another run"),
        ("outage", "outage"),
    )
]


@dataclass(frozen=True, slots=True)
class ScheduleLine:
    """The runs of one schedule. `longest`: the longest wait of a run before its start, in seconds.

    `marks`: the bars drawn for `history`. The bars are computed only for a line that is shown.
    """

    key: str
    history: Sequence[TimelineRun]
    marks: Sequence[Mark]
    runs: int
    failed: int
    retried: int
    skipped: int
    overlaps: int
    open: int
    longest: float
    busy: float


@dataclass(frozen=True, slots=True)
class NodeLine:
    """The runs of one host, drawn in lanes.

    Runs in one lane do not overlap. `left_out`: the number of runs for which no lane was free.
    """

    host: str
    lanes: Sequence[Sequence[Mark]]
    runs: int
    failed: int
    busy: float
    left_out: int


def yesterday(request: Request, shared: SharedState) -> Response:
    table, given = schedules_of(shared), request.query_params
    now: float = request.state.status.snapshot.taken
    asked = whole_number(given, "hours")
    hours = 24 if asked is None else asked
    if hours not in HOURS:
        raise InvalidValueError(f"hours must be one of {', '.join(map(str, HOURS))}, got {hours}")
    wanted = parse_moment("until", given["until"]) if given.get("until") else None
    until = None if wanted is None or wanted >= now else wanted
    number = max(1, whole_number(given, "page") or 1)
    prefix, length = given.get("prefix", ""), hours * _HOUR

    def ask() -> tuple[Timeline, Sequence[ScheduleLine], Sequence[NodeLine]]:
        timeline = table.timeline(length, until)
        return timeline, _by_schedule(timeline.runs, timeline), _by_node(timeline.runs, timeline)

    answer = shared.slow_answer(("timeline", hours, until), _KEPT, ask)
    if answer is None:
        return page(request, "computing.html", title="Yesterday", headers={"Refresh": "1"})
    found, lines, nodes = answer
    end, runs = found.until, found.runs
    if prefix:
        runs = [run for run in runs if run.key.startswith(prefix)]
        lines = [line for line in lines if line.key.startswith(prefix)]
        nodes = _by_node(runs, found)
    return page(
        request,
        "yesterday.html",
        found=found,
        lines=[_drawn(line, found) for line in lines[(number - 1) * _PAGE : number * _PAGE]],
        first=(number - 1) * _PAGE + 1,
        schedules=len(lines),
        has_more=len(lines) > number * _PAGE,
        number=number,
        nodes=nodes,
        outages=marks([Span("outage", each.begin, each.end) for each in found.outages], found.since, found.until),
        legend=_LEGEND,
        ticks=_ticks(found, hours),
        total=len(runs),
        hours=hours,
        choices=HOURS,
        prefix=prefix,
        until=None if until is None else moment_text(until),
        earlier=moment_text(end - length),
        later=moment_text(end + length) if end + length < now else None,
        is_now=until is None,
        now=now,
    )


def _ticks(found: Timeline, hours: int) -> Sequence[Tick]:
    moment = local_datetime(found.since)
    offset = 0 if moment is None else int((moment.utcoffset() or moment - moment).total_seconds())
    return ticks(found.since, found.until, max(600, hours * _HOUR // 8), offset)


def _by_schedule(runs: Sequence[TimelineRun], found: Timeline) -> list[ScheduleLine]:
    """Return a line for each schedule, sorted by failures and other problems, then by total running time."""
    by_key: dict[str, list[TimelineRun]] = defaultdict(list)
    for run in runs:
        by_key[run.key].append(run)
    lines = [_line(key, of_key, found) for key, of_key in by_key.items()]
    return sorted(lines, key=lambda each: (-_weight(each), -each.busy, each.key))


def _weight(line: ScheduleLine) -> int:
    return 100 * line.failed + 100 * line.overlaps + line.retried + line.skipped


def _line(key: str, runs: Sequence[TimelineRun], found: Timeline) -> ScheduleLine:
    begun = failed = retried = skipped = overlaps = unsettled = 0
    longest = busy = 0.0
    for run in runs:
        overlaps += run.overlap > 0
        unsettled += run.ended is None
        retried += run.attempts > 1 and run.outcome not in (FAILED, None)
        if run.outcome == SKIPPED:
            skipped += run.count or 1
        else:
            longest = max(longest, _begun(run, found.until) - run.due)
            failed += run.outcome == FAILED
        if run.began is not None:
            begun += 1
            busy += _ended(run, found.until) - run.began
    return ScheduleLine(key, runs, (), begun, failed, retried, skipped, overlaps, unsettled, longest, busy)


def _drawn(line: ScheduleLine, found: Timeline) -> ScheduleLine:
    spans = [span for run in line.history for span in _spans(run, found.until)]
    return replace(line, marks=marks(spans, found.since, found.until))


def _begun(run: TimelineRun, until: float) -> float:
    return until if run.began is None else run.began


def _ended(run: TimelineRun, until: float) -> float:
    return until if run.ended is None else run.ended


def _spans(run: TimelineRun, until: float) -> list[Span]:
    """Return the parts of a run as bars. Where bars overlap, the last of them is drawn on top."""
    title = partial(_title, run, until)
    ended = _ended(run, until)
    if run.outcome == SKIPPED:
        return [Span("paused" if run.is_paused else "skipped", run.due, ended if not run.is_paused else run.due, title)]
    begun = _begun(run, until)
    before = "retrying" if run.attempts > 1 else "waiting"
    spans = [Span(before, run.due, begun, title)] if begun > run.due else []
    if run.began is not None:
        kind = "failed" if run.outcome == FAILED else "open" if run.ended is None else "ran"
        spans.append(Span(kind, run.began, ended, title))
    if run.overlap > 0 and run.began is not None:
        spans.append(
            Span("overlap", run.began, run.began + run.overlap, partial(_title, run, until, ", beside another run"))
        )
    return spans


def _title(run: TimelineRun, until: float, more: str = "") -> str:
    return f"{when(run.scheduled_time)}: {_words(run, until)}{more}"


def _title_on_node(run: TimelineRun, until: float) -> str:
    return f"{run.key}, {_title(run, until)}"


def _words(run: TimelineRun, until: float) -> str:
    if run.outcome == SKIPPED:
        return f"{'many' if run.count is None else run.count} skipped"
    waited = _begun(run, until) - run.due
    parts = [f"{'waits' if run.began is None else 'waited'} {duration(waited)}"] if waited >= 1 else []
    if run.attempts > 1:
        parts.append(f"attempt {run.attempts}")
    if run.began is not None:
        parts.append(f"{'runs since' if run.ended is None else 'ran'} {duration(_ended(run, until) - run.began)}")
    return ", ".join([*parts, *([run.outcome] if run.outcome == FAILED else [])])


def _by_node(runs: Sequence[TimelineRun], found: Timeline) -> Sequence[NodeLine]:
    by_host: dict[str, list[TimelineRun]] = defaultdict(list)
    for run in runs:
        if run.began is not None:
            by_host[(run.node or "?").split("/")[0]].append(run)
    return [_node_line(host, of_host, found) for host, of_host in sorted(by_host.items())]


def _node_line(host: str, runs: Sequence[TimelineRun], found: Timeline) -> NodeLine:
    ends: list[float] = []
    lanes: Mapping[int, list[Span]] = defaultdict(list)
    left_out = 0
    for run in sorted(runs, key=lambda each: each.began or 0.0):
        assert run.began is not None
        lane = next((place for place, end in enumerate(ends) if end <= run.began), len(ends))
        if lane == _MOST_LANES:
            left_out += 1
            continue
        ends[lane:] = [_ended(run, found.until), *ends[lane + 1 :]]
        kind = "failed" if run.outcome == FAILED else "open" if run.ended is None else "ran"
        title = partial(_title_on_node, run, found.until)
        lanes[lane].append(Span(kind, run.began, _ended(run, found.until), title))
    return NodeLine(
        host,
        [marks(lanes[lane], found.since, found.until, 1 + 11 * lane, 10) for lane in range(len(ends))],
        len(runs),
        sum(run.outcome == FAILED for run in runs),
        sum(_ended(run, found.until) - run.began for run in runs if run.began is not None),
        left_out,
    )

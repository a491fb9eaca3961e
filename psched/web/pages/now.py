"""The page Now: what is late, what runs, what runs next, and what failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from psched.errors import NotSupportedError
from psched.insight import RunsAt, ScheduleInsight, TaskInsight
from psched.store.counts import Counted
from psched.time_text import local_time
from psched.web.charts import Columns, by_minute, columns, troubled
from psched.web.rendering import duration, page
from psched.web.shared_state import SharedState
from psched.web.status_poller import Snapshot, Status

_HOUR = 3600
_DAY = 86400
_LISTED = 8
_NONE = Counted(0)


@dataclass(frozen=True, slots=True)
class LastHour:
    """The runs of one section in the last hour.

    `wait`: what a wait is called. `p50`: the median of the minutes' medians. `p99`: the highest of the minutes.
    """

    title: str
    wait: str
    runs: int
    troubled: int
    p50: float | None
    p99: float | None
    throughput: Columns
    lateness: Columns


def now(request: Request, shared: SharedState) -> Response:
    status: Status = request.state.status
    snapshot = status.snapshot
    assert snapshot is not None
    schedules, tasks = shared.insight.schedules, shared.insight.tasks
    running = [(node, process, run) for node in snapshot.nodes for process in node.processes for run in process.runs]
    hours = [
        *([] if schedules is None else [_last_hour(shared, "Schedules", "Lateness", schedules)]),
        *([] if tasks is None else [_last_hour(shared, "Queue", "Wait", tasks)]),
    ]
    return page(
        request,
        "now.html",
        snapshot=snapshot,
        now=snapshot.taken,
        verdict=verdict(snapshot),
        running=sorted(running, key=lambda each: each[2].since)[:_LISTED],
        running_count=len(running),
        upcoming=[] if schedules is None else shared.answer("upcoming", 4, lambda: _upcoming(schedules)),
        troubles=[] if schedules is None else shared.answer("troubles", 4, lambda: _troubles(schedules, snapshot)),
        hours=[hour for hour in hours if hour is not None],
        has_schedules=schedules is not None,
        has_tasks=tasks is not None,
        none=_NONE,
    )


def verdict(snapshot: Snapshot) -> tuple[str, str]:
    """Return a CSS class and a sentence about the most important fact of the page."""
    alive = [node for node in snapshot.nodes if not node.vanished]
    due = snapshot.schedules.get("due", _NONE).count + snapshot.tasks.get("due", _NONE).count
    if snapshot.overdue:
        count = str(snapshot.overdue_count)
        return "bad", "1 schedule is overdue" if count == "1" else f"{count} schedules are overdue"
    if not alive and due:
        return "bad", "No node is running, and work is due"
    if any(node.vanished for node in snapshot.nodes):
        return "warn", "A node has vanished"
    if snapshot.schedules.get("failing", _NONE).count:
        return "warn", "Some schedules are failing and being retried"
    if not alive:
        return "warn", "No node is running"
    failed = snapshot.tasks.get("failed", _NONE)
    if failed.count:
        return "warn", "1 task has failed" if str(failed) == "1" else f"{failed} tasks have failed"
    return "good", "All is well"


def _upcoming(schedules: ScheduleInsight) -> Sequence[Any]:
    return [
        (row, state)
        for row, state in schedules.page(limit=_LISTED * 2).rows
        if state.word in ("waiting", "due", "overdue", "failing", "retrying")
    ][:_LISTED]


def _troubles(schedules: ScheduleInsight, snapshot: Snapshot) -> Sequence[Any]:
    return list(reversed(schedules.troubles(since=snapshot.taken - _DAY, last=_LISTED)))


def _last_hour(shared: SharedState, title: str, wait: str, table: ScheduleInsight | TaskInsight) -> LastHour | None:
    try:
        times, now = shared.answer(
            ("last hour", title), 15, lambda: (table.runs_by_time(_HOUR, durations=False), table.now())
        )
    except NotSupportedError:  # rdb_compat keeps no statistics
        return None
    minutes = by_minute(times, now)
    known = [each for each in minutes if each is not None]
    waits = [each for each in known if each.wait.p99 is not None]
    return LastHour(
        title,
        wait,
        sum(each.runs for each in known),
        sum(troubled(each.outcomes) for each in known),
        _middle([each.wait.p50 for each in waits]),
        max((each.wait.p99 for each in waits if each.wait.p99 is not None), default=None),
        columns([_throughput(each) for each in minutes]),
        columns([_lateness(each) for each in minutes], least=0.01),
    )


def _middle(values: Sequence[float | None]) -> float | None:
    known = sorted(value for value in values if value is not None)
    return known[len(known) // 2] if known else None


def _throughput(runs: RunsAt | None) -> tuple[float, float, str]:
    if runs is None:
        return 0, 0, ""
    bad = troubled(runs.outcomes)
    failed = f", {bad} not finished" if bad else ""
    return runs.runs - bad, bad, f"{local_time(runs.time)[11:16]}: {runs.runs} runs{failed}"


def _lateness(runs: RunsAt | None) -> tuple[float, float, str]:
    if runs is None or runs.wait.p99 is None:
        return 0, 0, ""
    return runs.wait.p99, 0, f"{local_time(runs.time)[11:16]}: 99 % within {duration(runs.wait.p99)}"

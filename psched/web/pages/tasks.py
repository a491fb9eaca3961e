"""The pages of the queue: its types, its tasks, and one task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from psched.error_messages import InvalidValueError
from psched.errors import NotSupportedError
from psched.insight import RunRates, TaskInsight
from psched.model import TASK_STATUSES
from psched.store.counts import DueUsers, TypeCounts
from psched.web.charts import troubled
from psched.web.pages.schedules import done
from psched.web.rendering import page
from psched.web.shared_state import SharedState, configured

POSSIBLE: Final[Mapping[str | None, tuple[str, ...]]] = {
    "waiting": ("cancel", "delete"),
    "running": ("cancel", "delete"),
    "finished": ("delete",),
    "failed": ("retry", "delete"),
    "cancelled": ("retry", "delete"),
}
"""For each status: the actions that are possible on all tasks with this status at once. Without a status no action is
possible, because too many tasks would be affected.
"""
_PAGE = 50
_HOUR = 3600


@dataclass(frozen=True, slots=True)
class OfType:
    """The rows of one type, and its runs of the last hour. One of them may be missing."""

    type: str
    counts: TypeCounts | None
    rates: RunRates | None
    troubled: int


def tasks_of(shared: SharedState) -> TaskInsight:
    """Return the queries about tasks. Raises NotFoundError if the configuration has no section `queue:`."""
    return configured(shared.insight.tasks, "queue")


def queue(request: Request, shared: SharedState) -> Response:
    table = tasks_of(shared)
    return page(
        request,
        "queue.html",
        counts=request.state.status.snapshot.tasks,
        statuses=TASK_STATUSES,
        types=shared.answer("types", 4, lambda: _types(table)),
        users=shared.answer("users", 2, lambda: _users(table)),
        done=done(request),
    )


def tasks(request: Request, shared: SharedState) -> Response:
    table, given = tasks_of(shared), request.query_params
    wanted = wanted_tasks(given)
    after = given.get("after") or None
    found = shared.answer(
        ("tasks", str(sorted(given.items()))), 2, lambda: table.page(**wanted, after=after, limit=_PAGE)
    )
    return page(
        request,
        "tasks.html",
        rows=found.rows,
        more=found.after,
        given=given,
        wanted={name: value for name, value in wanted.items() if value is not None},
        statuses=TASK_STATUSES,
        is_filtered=any(value is not None for value in wanted.values()),
        now=request.state.status.snapshot.taken,
        actions=[] if after else _possible(request, wanted["status"]),
        recorded=table.actions(key="") if request.state.access.actions else (),
        done=done(request),
    )


def task(request: Request, shared: SharedState) -> Response:
    table, key = tasks_of(shared), request.query_params.get("key", "")
    row, waits = table.details(key)
    web = shared.settings.web
    return page(
        request,
        "task.html",
        key=key,
        row=row,
        waits=waits,
        actions=table.actions(key=key),
        now=request.state.status.snapshot.taken,
        shows_data=web.show_data,
        done=done(request),
    )


def wanted_tasks(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of `TaskInsight.page` that the address of a page gives.

    Raises InvalidValueError for an unknown status.
    """
    status = given.get("status") or None
    if status is not None and status not in TASK_STATUSES:
        raise InvalidValueError(f"status must be one of {', '.join(TASK_STATUSES)}, got {status[:50]!r}")
    return {
        "status": status,
        "type": given.get("type") or None,
        "user": given.get("user") or None,
        "prefix": given.get("prefix") or None,
    }


def _possible(request: Request, status: str | None) -> list[str]:
    """Return the actions that the visitor may perform on all tasks with this status."""
    return [action for action in POSSIBLE.get(status, ()) if action in request.state.access.actions]


def _types(table: TaskInsight) -> Sequence[OfType]:
    try:
        counted = table.types()
        rates = table.run_report(_HOUR).types
    except NotSupportedError:  # rdb_compat keeps types inside the data
        return ()
    by_type = {each.type: each for each in rates}
    here = [OfType(each.type, each, *_rates(by_type.pop(each.type, None))) for each in counted]
    return [*here, *(OfType(name, None, *_rates(each)) for name, each in by_type.items())]


def _users(table: TaskInsight) -> DueUsers:
    """Return the users with due tasks, sorted by whose task is acquired next.

    Return no users if none of the due tasks that were read has a user.
    """
    try:
        found = table.users()
    except NotSupportedError:
        return DueUsers((), False)
    return found if any(each.user is not None for each in found.users) else DueUsers((), found.more)


def _rates(rates: RunRates | None) -> tuple[RunRates | None, int]:
    return rates, 0 if rates is None else troubled(rates.outcomes)

"""One action on all tasks that pass a filter. First a page shows their number; then the action runs in portions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from psched.clock import monotonic
from psched.error_messages import InvalidValueError
from psched.errors import ScheduleError
from psched.insight import TaskInsight
from psched.model import TaskFilter, TaskRow
from psched.store import TaskStore
from psched.store.counts import Counted
from psched.web.pages.actions import OF_TASKS, asked_action, record
from psched.web.pages.tasks import POSSIBLE, tasks_of, wanted_tasks
from psched.web.rendering import page, path
from psched.web.shared_state import SharedState, configured

_MOST = 1000
"""The maximum number of tasks of one portion. Tasks are also counted only up to this number."""
_LONGEST = 5.0
"""A portion ends after this many seconds."""
_SHOWN = 10
_PAGE = 200


def ask(request: Request, shared: SharedState) -> Response:
    """Show how many tasks the action would affect, and the first of them."""
    action, wanted = _asked(request, request.query_params)
    count, first = 0, list[TaskRow]()
    for row in _passing(tasks_of(shared), wanted):
        count += 1
        if len(first) < _SHOWN:
            first.append(row)
        if count > _MOST:
            break
    shown = {name: value for name, value in wanted.items() if value is not None}
    return page(request, "bulk.html", action=action, wanted=shown, count=Counted.up_to(_MOST, count), first=first)


def act(request: Request, shared: SharedState) -> Response:
    """Perform the action on a portion of the tasks, and redirect to the remaining tasks."""
    given = {name: unquote(values[0]) for name, values in request.state.form.items()}
    action, wanted = _asked(request, given)
    section = configured(shared.settings.queue, "queue")
    shown = {name: value for name, value in wanted.items() if value is not None}
    about = ", ".join(f"{name} {value}" for name, value in shown.items())
    record(request, shared.queue.store, section, action, "", f"all tasks with {about}, at most {_MOST}")
    until, done = monotonic() + _LONGEST, 0
    still = TaskFilter(wanted["status"], wanted["type"], wanted["user"])
    for number, row in enumerate(_passing(tasks_of(shared), wanted)):
        if number == _MOST or monotonic() > until:
            break
        with suppress(ScheduleError):  # the task does not pass the filter any more, or does not exist
            _perform(action, row.key, shared.queue.store, section.retention_time, still)
            done += 1
    shared.forget_answers()
    return RedirectResponse(
        path(request, "tasks", done=f"all-{action}", count=str(done), **shown), HTTPStatus.SEE_OTHER
    )


def _perform(action: str, key: str, store: TaskStore, retention: float, still: TaskFilter) -> None:
    """Perform the action, if the task still passes the filter. Raises ScheduleError."""
    if action == "retry":
        store.retry_failed(key, still)
    elif action == "cancel":
        store.cancel_request(key, retention, still)
    else:
        store.delete(key, still)


def _asked(request: Request, given: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """Return the action and the filter.

    Raises RefusedError, and InvalidValueError for a filter that selects too much.
    """
    action = asked_action(request, OF_TASKS, given.get("action", ""))
    wanted = wanted_tasks(given)
    if action not in POSSIBLE.get(wanted["status"], ()):
        possible = " or ".join(str(status) for status, actions in POSSIBLE.items() if action in actions)
        raise InvalidValueError(f"to {action} many tasks, select those with the status {possible}")
    return action, wanted


def _passing(table: TaskInsight, wanted: Mapping[str, Any]) -> Iterator[TaskRow]:
    """Yield the tasks that pass a filter, page by page."""
    after: str | None = None
    while True:
        found = table.page(**wanted, after=after, limit=_PAGE)
        yield from found.rows
        if found.after is None:
            return
        after = found.after

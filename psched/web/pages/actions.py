"""The actions of visitors on one schedule or task. Each action is recorded before it is performed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from psched.config import Section
from psched.error_messages import ESCAPES
from psched.queue.queue import QueuedTask
from psched.schedules.schedule_handle import Schedule
from psched.store import LeaseStore
from psched.web.access import Access, RefusedError
from psched.web.rendering import path
from psched.web.shared_state import SharedState

log = logging.getLogger(__name__)

_OF_SCHEDULES: Mapping[str, Callable[[Schedule], object]] = {
    "run-now": Schedule.run_now,
    "pause": Schedule.pause,
    "resume": Schedule.resume,
}
OF_TASKS: Mapping[str, Callable[[QueuedTask], object]] = {
    "retry": QueuedTask.retry,
    "cancel": QueuedTask.cancel_request,
    "delete": QueuedTask.delete,
}


def change_schedule(request: Request, shared: SharedState) -> Response:
    action, key = _asked(request, _OF_SCHEDULES)
    schedule = shared.schedules[key]
    record(request, shared.schedules.store, shared.settings.schedules, action, key)
    _OF_SCHEDULES[action](schedule)
    return _back(request, shared, action, {"schedule": {"key": key}, "schedules": {}}, "schedule")


def change_task(request: Request, shared: SharedState) -> Response:
    action, key = _asked(request, OF_TASKS)
    task = shared.queue[key]
    record(request, shared.queue.store, shared.settings.queue, action, key)
    OF_TASKS[action](task)
    return _back(request, shared, action, {"task": {"key": key}, "tasks": {}}, "task")


def _asked(request: Request, known: Mapping[str, object]) -> tuple[str, str]:
    """Return the action and the key of a request. Raises RefusedError for an unknown or forbidden action."""
    return asked_action(request, known, field(request, "action")), unquote(field(request, "key"))


def asked_action(request: Request, known: Mapping[str, object], action: str) -> str:
    """Return `action` if it is known and allowed. Raises RefusedError otherwise."""
    if action not in known or action not in request.state.access.actions:
        raise RefusedError(HTTPStatus.FORBIDDEN, f"you are not allowed to do this: {action[:50]}")
    return action


def field(request: Request, name: str) -> str:
    """Return a field of the form; an empty string if the field is missing."""
    values: list[str] = request.state.form.get(name, [""])
    return values[0]


def record(
    request: Request, store: LeaseStore, section: Section | None, action: str, key: str, detail: str | None = None
) -> None:
    """Record an action of the visitor in the table of actions and in the log.

    Call `record` before the action is performed. If `record` raises, do not perform the action. `rdb_compat` has no
    table of actions; there `record` only writes to the log.
    """
    access: Access = request.state.access
    about = key if detail is None else detail
    log.info("action=%s key=%s user=%s", action, about.translate(ESCAPES), access.user.translate(ESCAPES))
    if store.actions is not None and section is not None:
        store.actions.record(access.user, action, key, detail, section.ledger_retention)


def _back(
    request: Request, shared: SharedState, action: str, pages: Mapping[str, Mapping[str, str]], default: str
) -> Response:
    """Redirect to the page from which the visitor came.

    `pages`: the possible pages, each with the parameters of its address. `default`: the page for all other visitors.
    """
    shared.forget_answers()
    name = field(request, "back")
    name = name if name in pages else default
    return RedirectResponse(path(request, name, done=action, **pages[name]), HTTPStatus.SEE_OTHER)

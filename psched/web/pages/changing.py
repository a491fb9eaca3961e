"""What visitors do to schedules and tasks: each action is recorded before it is done."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from psched.error_text import ESCAPES
from psched.errors import NotFoundError
from psched.queue.queue import QueuedTask
from psched.schedules.schedule import Schedule
from psched.web.access import Access, RefusedError
from psched.web.rendering import path
from psched.web.site import Site

log = logging.getLogger(__name__)

_OF_SCHEDULES: Mapping[str, Callable[[Schedule], object]] = {
    "run-now": Schedule.run_now,
    "pause": Schedule.pause,
    "resume": Schedule.resume,
}
_OF_TASKS: Mapping[str, Callable[[QueuedTask], object]] = {
    "retry": QueuedTask.retry,
    "cancel": QueuedTask.cancel_request,
    "delete": QueuedTask.delete,
}


def change_schedule(request: Request, site: Site) -> Response:
    action, key = _asked(request, _OF_SCHEDULES)
    if site.schedules is None:
        raise NotFoundError("this configuration has no section `schedules`")
    schedule = site.schedules[key]
    _log(request, action, key)
    _OF_SCHEDULES[action](schedule)
    return _back(request, site, action, {"schedule": {"key": key}, "schedules": {}}, "schedule")


def change_task(request: Request, site: Site) -> Response:
    action, key = _asked(request, _OF_TASKS)
    if site.queue is None:
        raise NotFoundError("this configuration has no section `queue`")
    task = site.queue[key]
    _log(request, action, key)
    _OF_TASKS[action](task)
    return _back(request, site, action, {"task": {"key": key}, "tasks": {}}, "task")


def _asked(request: Request, known: Mapping[str, object]) -> tuple[str, str]:
    """Return the action and the key. Raises RefusedError for what this visitor may not do, or nobody can."""
    action, access = field(request, "action"), request.state.access
    if action not in known or action not in access.actions:
        raise RefusedError(HTTPStatus.FORBIDDEN, f"you may not do this: {action[:50]}")
    return action, unquote(field(request, "key"))


def field(request: Request, name: str) -> str:
    """Return a field of the form, an empty text if it is missing."""
    values: list[str] = request.state.form.get(name, [""])
    return values[0]


def _log(request: Request, action: str, key: str) -> None:
    access: Access = request.state.access
    log.info("action=%s key=%s user=%s", action, key.translate(ESCAPES), access.user.translate(ESCAPES))


def _back(request: Request, site: Site, action: str, pages: Mapping[str, Mapping[str, str]], default: str) -> Response:
    """Lead to the page from which the visitor came: one of `pages`, with what belongs to its address."""
    site.forget_answers()
    name = field(request, "back")
    name = name if name in pages else default
    return RedirectResponse(path(request, name, done=action, **pages[name]), HTTPStatus.SEE_OTHER)

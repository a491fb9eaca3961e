"""The ASGI application: its routes, and the code around each page."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, unquote
from zoneinfo import ZoneInfo

import anyio
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from psched.config import SectionName, Settings, coerce
from psched.error_messages import InvalidValueError, one_line
from psched.errors import ConfigError, NotFoundError, ScheduleError
from psched.time_text import shown_zone
from psched.web import pages
from psched.web.access import AccessFunction, Gate, RefusedError
from psched.web.protection import Protection
from psched.web.rendering import STATIC, page
from psched.web.shared_state import SharedState
from psched.web.status_poller import INTERVAL, Status

log = logging.getLogger(__name__)

_LONGEST_ANSWER = 8.0
"""Seconds after which a page reports that the database does not answer. Each statement may take 2 s."""
_THREADS = 8
"""The maximum number of pages that are made at the same time."""
_EXPORT_THREADS = 8
"""The maximum number of exports that are made at the same time. They have their own threads, because they may wait
long."""
_QUIET = 15.0
"""Seconds after which a stream without changes sends a comment, so that proxies keep the stream open."""
_LONGEST_FORM = 1_000_000
_MOST_FIELDS = 200

Answer = Callable[[Request, SharedState], Response]


def app(
    settings: Settings | Mapping[str, Any] | str | os.PathLike[str],
    *,
    access: AccessFunction | None = None,
    environment: str | None = None,
    reader: SectionName = "schedules",
) -> Starlette:
    """Return the pages as an ASGI application, to be mounted or served. Opens no connection.

    `settings`: a configuration file, a mapping, or `Settings`, as for `psched.open`. `access`: returns what a visitor
    may do. Without this function, `web:` and the environment decide. Visitors can change something only if
    `web.actions` is true. Raises ConfigError.
    """
    found = coerce(settings, environment, reader)
    if not found.sections:
        raise ConfigError("the configuration has neither schedules nor a queue; add a section `schedules:` or `queue:`")
    shared = SharedState(found, Gate(found.web, access))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await anyio.to_thread.run_sync(shared.close)

    routes = [
        *(
            Route(path, _endpoint(answer, pages.PATIENCE.get(path)), methods=["GET"])
            for path, answer in pages.PAGES.items()
        ),
        *(Route(path, _endpoint(answer), methods=["POST"]) for path, answer in pages.ACTIONS.items()),
        Route("/changes", _changes, methods=["GET"]),
        Mount("/static", _Static(directory=STATIC)),
    ]
    middleware = [
        Middleware(Protection),
        Middleware(GZipMiddleware, minimum_size=1000, compresslevel=5),
        Middleware(_Visitors, shared=shared),
    ]
    made = Starlette(
        routes=routes,
        middleware=middleware,
        lifespan=lifespan,
        exception_handlers={HTTPStatus.NOT_FOUND: _not_found, HTTPStatus.METHOD_NOT_ALLOWED: _not_allowed},
    )
    made.state.shared = shared
    made.state.limiter = anyio.CapacityLimiter(_THREADS)
    made.state.export_limiter = anyio.CapacityLimiter(_EXPORT_THREADS)
    return made


class _Visitors:
    """Finds out what each visitor may do. Refuses visitors without access. Refuses changes by read-only visitors."""

    def __init__(self, app: ASGIApp, shared: SharedState) -> None:
        self._app = app
        self._shared = shared
        zone = shared.settings.web.timezone
        self._zone = None if zone is None else ZoneInfo(zone)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        answer: ASGIApp = self._app
        before = shown_zone.set(self._zone)
        try:
            try:
                access = await self._shared.gate.access_of(request)
                scope.setdefault("state", {})["access"] = access
                if request.method not in ("GET", "HEAD") and not access.actions:
                    raise RefusedError(HTTPStatus.FORBIDDEN, "these pages are read-only; nothing can be changed here")
            except RefusedError as error:
                answer = page(request, "error.html", error.status, title=error.status.phrase, message=error.message)
                answer.headers.update(error.headers)
            await answer(scope, receive, send)
        finally:
            shown_zone.reset(before)


class _Static(StaticFiles):
    """Static files. A browser may keep them for ever, because their address contains their version."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        answer = super().file_response(*args, **options)
        answer.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return answer


def _endpoint(answer: Answer, patience: Callable[[Request], float] | None = None) -> Callable[[Request], Any]:
    """Return an endpoint that makes a page in a thread, or reports that the database does not answer.

    `patience`: returns how many seconds longer than other pages a request may wait.
    """

    async def endpoint(request: Request) -> Response:
        shared: SharedState = request.app.state.shared
        if request.method == "POST":
            form = await _form(request)
            if form is None:
                return page(request, "error.html", HTTPStatus.REQUEST_ENTITY_TOO_LARGE, title="Too long", message="")
            request.state.form = form
        more = 0.0 if patience is None else patience(request)
        limiter: anyio.CapacityLimiter = request.app.state.export_limiter if more else request.app.state.limiter
        found: Response | None = None
        with anyio.move_on_after(_LONGEST_ANSWER + more):
            found = await anyio.to_thread.run_sync(
                partial(_answered, answer, request, shared), abandon_on_cancel=True, limiter=limiter
            )
        return found if found is not None else _away(request, shared.status_poller.status(0))

    return endpoint


async def _form(request: Request) -> Mapping[str, list[str]] | None:
    """Return the fields of a form; None if the form is too long."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LONGEST_FORM:
            return None
    try:
        return parse_qs(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        return None


def _answered(answer: Answer, request: Request, shared: SharedState) -> Response:
    request.state.status = status = shared.status_poller.status()
    if status.away_since is not None or status.snapshot is None:
        return _away(request, status)
    try:
        return answer(request, shared)
    except NotFoundError as error:
        return page(request, "error.html", HTTPStatus.NOT_FOUND, title="Not found", message=str(error))
    except RefusedError as error:
        return page(request, "error.html", error.status, title=error.status.phrase, message=error.message)
    except (ScheduleError, InvalidValueError) as error:
        return page(request, "error.html", HTTPStatus.BAD_REQUEST, title="Not done", message=one_line(error))
    except Exception as error:
        if _has_nul(request):  # PostgreSQL cannot store NUL
            message = "a value has the character NUL, which this database cannot store"
            return page(request, "error.html", HTTPStatus.BAD_REQUEST, title="Not done", message=message)
        if not shared.insight.is_unavailable(error):
            log.exception("page failed: %s", request.url.path)
            message = f"{type(error).__name__}; see the log of psched web for the whole error"
            return page(request, "error.html", HTTPStatus.INTERNAL_SERVER_ERROR, title="An error", message=message)
        status = shared.status_poller.next_status()
        if status.away_since is not None:
            return _away(request, status)
        log.warning("page failed: %s: %s", request.url.path, one_line(error))
        message = f"the database answers, but refuses the query of this page: {one_line(error)}"
        return page(request, "error.html", HTTPStatus.SERVICE_UNAVAILABLE, title="No answer in time", message=message)


def _has_nul(request: Request) -> bool:
    form: Mapping[str, list[str]] = getattr(request.state, "form", {})
    values = [*request.query_params.values(), *(value for values in form.values() for value in values)]
    return any("\0" in unquote(value) for value in values)


def _away(request: Request, status: Status) -> Response:
    """Return a page that says since when the database has not answered. Browsers fetch the page again by themselves."""
    since = time.time() if status.away_since is None else status.away_since
    answer = page(request, "away.html", HTTPStatus.SERVICE_UNAVAILABLE, since=since, problem=status.problem)
    answer.headers["Retry-After"] = "5"
    answer.headers["Refresh"] = "5"
    return answer


async def _changes(request: Request) -> Response:
    """Stream an event whenever the browser should fetch the page again. With more streams, each gets fewer events."""
    shared: SharedState = request.app.state.shared

    async def events() -> AsyncIterator[str]:
        shared.streams += 1
        last, unsent = "", 0.0
        try:
            yield "retry: 3000\n\n"
            while not shared.status_poller.is_closed:
                status = shared.status_poller.status(0)
                mark = "away" if status.away_since is not None else status.snapshot.mark if status.snapshot else ""
                if mark != last and (not last or "away" in (mark, last) or unsent >= _pause(shared.streams)):
                    yield f"data: {mark}\n\n"
                    last, unsent = mark, 0.0
                elif unsent and unsent % _QUIET == 0:
                    yield ": still here\n\n"
                await anyio.sleep(INTERVAL)
                unsent += INTERVAL
        finally:
            shared.streams -= 1

    return StreamingResponse(events(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


def _pause(streams: int) -> float:
    """Return the seconds between two events of one stream. All browsers together fetch at most two pages a second."""
    return max(2.0, streams / 2)


async def _not_found(request: Request, _: Exception) -> Response:
    return page(request, "error.html", HTTPStatus.NOT_FOUND, title="Not found", message="this page does not exist")


async def _not_allowed(request: Request, _: Exception) -> Response:
    return RedirectResponse(request.scope.get("root_path", "") + "/", HTTPStatus.SEE_OTHER)

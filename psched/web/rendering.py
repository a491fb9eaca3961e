"""Templates, and the formatting of values. No text of keys, types, errors or data can become active content."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from psched.config import Settings
from psched.error_messages import ESCAPES
from psched.model import NEVER
from psched.stored_error_summary import error_summary
from psched.time_text import local_datetime, shown_zone, span

_HERE = Path(__file__).parent
STATIC: Final = _HERE / "static"
MASK: Final = "••••••"
_SECRET = re.compile(
    r"pass(word|wd|phrase)?$|^pwd$|secret|token|(api|access|private)_?key|authorization|credential|cookie",
    re.IGNORECASE,
)
NAVIGATION: Final = (
    ("", "Now", "n"),
    ("schedules", "Schedules", "s"),
    ("week", "Week ahead", "w"),
    ("yesterday", "Yesterday", "y"),
    ("proof", "Proof", "p"),
    ("what-if", "What if", "i"),
    ("queue", "Queue", "q"),
    ("nodes", "Nodes", "o"),
    ("doctor", "Doctor", "d"),
)
"""The pages to which each page links: path, title, and keyboard shortcut."""
_OF_ANY_SECTION = ("", "nodes", "doctor")
_OF_QUEUE = ("queue",)
"""Pages that need the queue. The other pages need schedules."""
_MOST_DATA = 20_000
"""The maximum number of characters of data that are shown."""


def harmless(value: Any) -> Any:
    """Return a value for the page. Control characters and bidirectional characters in texts are escaped."""
    if isinstance(value, str) and not isinstance(value, Markup):
        if value.isascii() and value.isprintable():  # most texts; takes a tenth of the time (2026-11-28)
            return value
        return value.translate(ESCAPES).encode("utf-8", "backslashreplace").decode()
    return "" if value is None else value


def masked(value: Any) -> Any:
    """Return a JSON value with secrets masked at any depth. The name of a member decides whether it is a secret."""
    if isinstance(value, Mapping):
        return {name: MASK if _SECRET.search(str(name)) else masked(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [masked(each) for each in value]
    return value


def as_json(value: Any) -> str:
    """Return data as indented text. Secrets are masked, and the text is cut to a length that a page can show."""
    try:
        text = json.dumps(masked(value), indent=2, ensure_ascii=False, default=repr)
    except (ValueError, RecursionError):
        return "(this data cannot be shown as JSON)"
    return text if len(text) <= _MOST_DATA else f"{text[:_MOST_DATA]}\n… ({len(text):,} characters)"


def moment(seconds: float | None, seconds_shown: bool = True) -> Markup:
    """Return unix seconds as a `<time>` in the shown zone. Its title is the time in UTC."""
    if seconds is None:
        return Markup("–")
    if seconds >= NEVER:
        return Markup("never")
    there = local_datetime(seconds)
    if there is None:
        return Markup(str(seconds))  # noqa: S704 – a number
    utc = datetime.fromtimestamp(seconds, UTC)
    text = f"{there:%Y-%m-%d %H:%M:%S}" if seconds_shown else f"{there:%Y-%m-%d %H:%M}"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        f"{utc:%Y-%m-%dT%H:%M:%SZ}", f"{utc:%Y-%m-%d %H:%M:%S} UTC", text
    )


def ago(seconds: float | None, now: float) -> Markup:
    """Return how long ago a time is, or how far ahead, as a `<time>`. The title of the `<time>` is the date."""
    if seconds is None:
        return Markup("–")
    if seconds >= NEVER:
        return Markup("never")
    there = local_datetime(seconds)
    if there is None:
        return Markup(str(seconds))  # noqa: S704 – a number
    utc = datetime.fromtimestamp(seconds, UTC)
    text = f"in {span(seconds - now)}" if seconds > now else f"{span(now - seconds)} ago"
    return Markup('<time datetime="{}" title="{}" data-from="{}">{}</time>').format(
        f"{utc:%Y-%m-%dT%H:%M:%SZ}", f"{there:%Y-%m-%d %H:%M:%S %z}", f"{seconds:.0f}", text
    )


def when(seconds: float) -> str:
    """Return unix seconds as a date in the shown zone, for use in a title."""
    there = local_datetime(seconds)
    return str(seconds) if there is None else f"{there:%Y-%m-%d %H:%M:%S}"


def duration(seconds: float | None) -> str:
    """Return seconds as `3 ms`, `1.25 s` or `2 min 5 s`."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    return f"{seconds:.3g} s" if seconds < 60 else span(seconds)


def clock(seconds: float) -> str:
    """Return the time of day in the shown zone."""
    there = local_datetime(seconds)
    return str(seconds) if there is None else f"{there:%H:%M}"


def day(seconds: float) -> str:
    """Return the month and the day in the shown zone."""
    there = local_datetime(seconds)
    return str(seconds) if there is None else f"{there:%m-%d}"


def utc_offset(seconds: int) -> str:
    """Return a UTC offset as `UTC+05:30`."""
    minutes = abs(seconds) // 60
    return f"UTC{'-' if seconds < 0 else '+'}{minutes // 60:02}:{minutes % 60:02}"


def zone_name() -> str:
    """Return the name of the zone in which times are now shown."""
    zone = shown_zone.get()
    there = datetime.now(UTC).astimezone(zone)
    return getattr(zone, "key", None) or f"{there:%Z}"


def path(request: Request, page: str, /, **query: Any) -> str:
    """Return the path of a page with a query. Leaves out parameters that are None or empty."""
    given = urlencode({name: value for name, value in query.items() if value is not None and value != ""})
    return f"{request.scope.get('root_path', '')}/{page}{'?' if given else ''}{given}"


def _below(request: Request) -> str:
    """Return the request's path without the prefix under which the application is mounted."""
    return str(request.scope["path"]).removeprefix(request.scope.get("root_path", ""))


def _has_section(request: Request, page: str) -> bool:
    settings: Settings = request.app.state.shared.settings
    if page in _OF_ANY_SECTION:
        return True
    return (settings.queue if page in _OF_QUEUE else settings.schedules) is not None


@cache
def static_version(name: str) -> str:
    return hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]


def page(
    request: Request,
    template: str,
    /,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    **values: Any,
) -> HTMLResponse:
    """Return a page. When something has changed, htmx fetches the page again, and replaces the element `live` in it."""
    shown = values | {
        "path": lambda page, /, **query: path(request, page, **query),
        "static": lambda name: f"{path(request, 'static')}/{name}?v={static_version(name)}",
        "request": request,
        "here": f"{request.scope.get('root_path', '')}{_below(request)}?{request.url.query}",
        "nav": [each for each in NAVIGATION if _has_section(request, each[0])],
        "current": _below(request).strip("/"),
        "zone": zone_name(),
        "access": getattr(request.state, "access", None),
    }
    return HTMLResponse(_templates().get_template(template).render(shown), status, headers)


@cache
def _templates() -> Environment:
    found = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=harmless,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    found.filters |= {
        "ago": ago,
        "clock": clock,
        "day": day,
        "duration": duration,
        "json": as_json,
        "moment": moment,
        "offset": utc_offset,
        "span": span,
        "summary": error_summary,
        "when": when,
    }
    return found

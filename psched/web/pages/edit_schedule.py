"""Editing a schedule: a form, a preview of the effects, and the confirmed change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, cast
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from psched.error_messages import InvalidValueError, one_line
from psched.errors import ConfigError, NotFoundError, NotSupportedError, ScheduleError
from psched.insight import ChangePreview, ScheduleInsight
from psched.model import CATCH_UP, OVERLAP, ScheduleRow
from psched.retry_wait import Backoff
from psched.schedules.modification import Changes
from psched.time_text import local_datetime, parse_local_datetime, parse_seconds
from psched.web.access import RefusedError
from psched.web.pages.actions import asked_action, field, record
from psched.web.pages.schedules import schedules_of, there, words_of
from psched.web.rendering import harmless, page, path
from psched.web.shared_state import SharedState
from psched.web.visitor_input import parsed

_MODIFY: Final = "modify"
_LISTED = 10
_LONGEST_DETAIL = 500


@dataclass(frozen=True, slots=True)
class _FormField:
    """A field of the form.

    `read`: converts a text to a value for `Schedule.modify`. `none`: the value of an empty string.
    """

    name: str
    label: str
    hint: str
    read: Callable[[str], Any]
    kind: str = "text"
    none: Any = None
    words: Sequence[str] = ()

    def value(self, text: str) -> Any:
        """Convert the text of this field to its value. Raises InvalidValueError."""
        if not text:
            return self.none
        return parsed(text, self.read, f"{self.label}: expected {self.hint}")


def _wait(text: str) -> float | Backoff:
    first, is_growing, limit = text.partition("..")
    return Backoff(parse_seconds(first), limit=parse_seconds(limit)) if is_growing else parse_seconds(text)


def _texts(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


_SPAN = "seconds, or a span such as 5m or 2h"
_TIME = "a time such as 2027-03-01T09:00"
_NUMBER = "a whole number"
_FIELDS: Final = (
    _FormField("cron", "Cron expression", "such as 0 3 * * *, or @every 5m", str, none=""),
    _FormField("timezone", "Time zone", "such as Europe/Berlin", str, none=""),
    _FormField("delay", "Delay", _SPAN, parse_seconds, none=0.0),
    _FormField("spread", "Spread", _SPAN, parse_seconds),
    _FormField("start", "Not before", _TIME, parse_local_datetime, "datetime-local"),
    _FormField("end", "Not after", _TIME, parse_local_datetime, "datetime-local"),
    _FormField("max_runs", "Most runs", _NUMBER, int),
    _FormField("exclude", "Calendars of days off", "names, separated by commas", _texts, none=()),
    _FormField("catch_up", "Catch up", ", ".join(CATCH_UP), str, "select", CATCH_UP[0], CATCH_UP),
    _FormField("overlap", "If the previous run is not over", ", ".join(OVERLAP), str, "select", OVERLAP[0], OVERLAP),
    _FormField("max_lateness", "Latest start", _SPAN, parse_seconds),
    _FormField("alert_after", "Alert after", _SPAN, parse_seconds),
    _FormField("max_attempts", "Most attempts", _NUMBER, int),
    _FormField("retry_wait", "Wait after a failure", f"{_SPAN}, or the first and the longest wait: 10s..5m", _wait),
    _FormField("timeout", "Longest run", _SPAN, parse_seconds),
    _FormField("pause_after", "Pause after failures in a row", _NUMBER, int),
    _FormField("on_failure", "Hook of a failure", "a name in hooks:", str),
    _FormField("owner", "Owner", "text", str),
    _FormField("description", "Description", "text", str),
    _FormField("tags", "Tags", "texts, separated by commas", _texts, none=()),
)


@dataclass(frozen=True, slots=True)
class _Filled:
    """A field of the form, and its text. `was`: the text for the schedule's current value."""

    field: _FormField
    text: str
    was: str

    @property
    def is_changed(self) -> bool:
        return self.text != self.was


@dataclass(frozen=True, slots=True)
class _ShownTime:
    """When a run would start, in the shown zone and in the schedule's zone."""

    time: float
    there: str


def ask(request: Request, shared: SharedState) -> Response:
    """Show the form. If a change is given, also show its effects."""
    _check_may_modify(request)
    given = request.query_params
    fields = {each.name: given[each.name] for each in _FIELDS if each.name in given}
    key = unquote(given["quoted_key"]) if "quoted_key" in given else given.get("key", "")
    return _form(request, schedules_of(shared), key, fields)


def act(request: Request, shared: SharedState) -> Response:
    """Make the change whose effects were shown, if the schedule still has the same version."""
    action = asked_action(request, {_MODIFY: None}, _MODIFY)
    table, key = schedules_of(shared), unquote(field(request, "key"))
    given = {each.name: unquote(field(request, each.name)) for each in _FIELDS if each.name in request.state.form}
    version = parsed(field(request, "version"), int, "version must be a whole number")
    filled = _filled(shared.schedules[key].metadata(), given)
    try:
        changes = _changes(filled)
        if changes:
            detail = "; ".join(f"{each.field.name}: {each.was} → {each.text}" for each in filled if each.is_changed)
            detail = f"version {version}: {detail}"[:_LONGEST_DETAIL]
            record(request, shared.schedules.store, shared.settings.schedules, action, key, detail)
            shared.schedules[key].modify(if_version=version, **cast("Any", changes))
    except NotFoundError:
        raise
    except (ConfigError, ScheduleError, InvalidValueError) as error:
        return _form(request, table, key, given, one_line(error), HTTPStatus.CONFLICT)
    shared.forget_answers()
    return RedirectResponse(path(request, "schedule", key=key, done=action), HTTPStatus.SEE_OTHER)


def _check_may_modify(request: Request) -> None:
    if _MODIFY not in request.state.access.actions:
        raise RefusedError(HTTPStatus.FORBIDDEN, "you may not edit schedules")


def _form(
    request: Request,
    table: ScheduleInsight,
    key: str,
    given: Mapping[str, str],
    problem: str = "",
    status: HTTPStatus = HTTPStatus.OK,
) -> Response:
    row = table.row(key)
    if not row.version:
        raise NotSupportedError(f"{key!r} cannot be edited here, because its table has no versions; use psched modify")
    filled = _filled(row, given)
    preview: ChangePreview | None = None
    if not problem:
        try:
            changes = _changes(filled)
            preview = table.preview(key, changes) if changes else None
        except NotFoundError:
            raise
        except (ConfigError, ScheduleError, InvalidValueError) as error:
            problem, status = one_line(error), HTTPStatus.BAD_REQUEST
    return page(
        request,
        "edit.html",
        status,
        key=key,
        row=row if preview is None else preview.before,
        filled=filled,
        calendars=table.calendars(),
        is_asked=bool(given),
        problem=problem,
        preview=preview,
        words=("", "") if preview is None else tuple(words_of(table, each.rule) for each in _both(preview)),
        gained=[] if preview is None else _moments(preview.gained, preview.after),
        lost=[] if preview is None else _moments(preview.lost, preview.before),
        now=request.state.status.snapshot.taken,
    )


def _both(preview: ChangePreview) -> Sequence[ScheduleRow]:
    return preview.before, preview.after


def _moments(times: Sequence[float], row: ScheduleRow) -> Sequence[_ShownTime]:
    return [_ShownTime(time, there(time, row.rule)) for time in times[:_LISTED]]


def _filled(row: ScheduleRow, given: Mapping[str, str]) -> Sequence[_Filled]:
    listed = []
    for each in _FIELDS:
        was = harmless(_text(each, getattr(row.rule if hasattr(row.rule, each.name) else row.policy, each.name)))
        listed.append(_Filled(each, given.get(each.name, was).strip(), was.strip()))
    return listed


def _text(field: _FormField, value: Any) -> str:
    """Return a value as the text of its field in the form."""
    if field.kind == "datetime-local":
        moment = None if value is None else local_datetime(value)
        return "" if moment is None else f"{moment:{'%Y-%m-%dT%H:%M:%S' if moment.second else '%Y-%m-%dT%H:%M'}}"
    if field.name == "exclude":
        return ", ".join(each.name for each in value)
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if field.name == "spread" and not value:
        return ""
    if isinstance(value, Backoff):
        return f"{value.first:g}s..{value.limit:g}s"
    return "" if value is None else f"{value:g}" if isinstance(value, float) and value < 1e5 else str(value)


def _changes(filled: Sequence[_Filled]) -> Changes:
    """Return the values of the fields that differ from the schedule. Raises InvalidValueError."""
    return cast("Changes", {each.field.name: each.field.value(each.text) for each in filled if each.is_changed})

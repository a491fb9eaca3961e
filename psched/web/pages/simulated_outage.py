"""The page What if: simulates an outage with a given number of workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from psched.error_messages import InvalidValueError, one_line
from psched.insight import ScheduleInsight, SimulatedHour, SimulatedOutage, SimulatedSchedule, Simulation
from psched.insight.forecast import short_number
from psched.time_text import local_datetime, local_time, parse_local_datetime, parse_seconds
from psched.web.charts import columns
from psched.web.pages.schedules import schedules_of
from psched.web.rendering import page
from psched.web.shared_state import SharedState
from psched.web.status_poller import Snapshot
from psched.web.visitor_input import parsed

_HOUR: Final = 3600
_KEPT = 60.0
_MOST_STARTS = 200_000
"""The maximum number of occurrences that the page simulates. So many take a few seconds. `psched simulate` has a higher
limit.
"""
_LISTED = 50
_FOLLOWED: Final[Mapping[str, int]] = {"6 hours": 6 * _HOUR, "1 day": 24 * _HOUR, "7 days": 168 * _HOUR}
"""How long the simulation can continue after the outage: each choice, and its length in seconds."""
_MOST_WORKERS = 10_000
_LONGEST = 31 * 86400
_FARTHEST = 366 * 86400
"""The longest time from now to the start of the outage, in seconds. `_LONGEST`: the longest outage."""


@dataclass(frozen=True, slots=True)
class _Question:
    """The visitor's question. `handler_time`: seconds of each run; None: as long as the last runs took."""

    begin: float
    end: float
    followed: int
    workers: int
    handler_time: float | None


@dataclass(frozen=True, slots=True)
class _Answer:
    """A simulation without the lists that are too long for a page. `affected`: the schedules with the worst delays."""

    found: Simulation
    affected: Sequence[SimulatedSchedule]
    affected_count: int


def simulated_outage(request: Request, shared: SharedState) -> Response:
    table, given = schedules_of(shared), request.query_params
    snapshot: Snapshot = request.state.status.snapshot
    form = _form(given, snapshot)
    shown: dict[str, Any] = {"form": form, "followed": _FOLLOWED, "answer": None, "problem": "", "now": snapshot.taken}
    if "begin" not in given:
        return page(request, "simulated_outage.html", **shown)
    try:
        question = _read(form, snapshot.taken)
        answer = shared.slow_answer(("what if", question), _KEPT, lambda: _ask(table, question))
    except InvalidValueError as error:
        return page(request, "simulated_outage.html", HTTPStatus.BAD_REQUEST, **shown | {"problem": one_line(error)})
    if answer is None:
        return page(request, "computing.html", title="What if", headers={"Refresh": "1"})
    found = answer.found
    shown |= {
        "answer": answer,
        "found": found,
        "starts": columns([_starts(hour) for hour in found.hours]),
        "busy": columns([_busy(hour) for hour in found.hours], least=found.workers),
    }
    return page(request, "simulated_outage.html", **shown)


def _form(given: Mapping[str, str], snapshot: Snapshot) -> Mapping[str, str]:
    """Return the texts of the form: the given ones, or by default an outage of two hours from the next full hour."""
    begin = (int(snapshot.taken) // _HOUR + 1) * _HOUR
    workers = sum(len(node.processes) for node in snapshot.nodes if not node.vanished)
    first = {
        "begin": f"{local_datetime(begin):%Y-%m-%dT%H:%M}",
        "end": f"{local_datetime(begin + 2 * _HOUR):%Y-%m-%dT%H:%M}",
        "workers": str(workers or 4),
        "handler_time": "",
        "followed": "1 day",
    }
    return {name: given.get(name, text).strip() for name, text in first.items()}


def _read(form: Mapping[str, str], now: float) -> _Question:
    """Return the simulation that the form asks for. Raises InvalidValueError that names the field."""

    def read(name: str, label: str, expected: str, convert: Callable[[str], float]) -> float:
        return parsed(form[name], convert, f"{label}: expected {expected}")

    begin = read("begin", "Outage from", "a time such as 2027-03-01T09:00", parse_local_datetime)
    end = read("end", "Outage to", "a time such as 2027-03-01T09:00", parse_local_datetime)
    workers = read("workers", "Workers", "a whole number", int)
    seconds = None
    if form["handler_time"]:
        seconds = read("handler_time", "Duration of a run", "seconds, or a span such as 90s or 5m", parse_seconds)
    if abs(begin - now) > _FARTHEST:
        raise InvalidValueError("Outage from: expected a time within a year from now")
    if not begin < end <= begin + _LONGEST:
        raise InvalidValueError(
            f"Outage to: expected a time after the start of the outage, at most {_LONGEST // 86400} days later"
        )
    if not 1 <= workers <= _MOST_WORKERS:
        raise InvalidValueError(f"Workers: expected 1 to {_MOST_WORKERS:,}, got {workers:,}")
    if form["followed"] not in _FOLLOWED:
        raise InvalidValueError(f"Continue for: expected one of {', '.join(_FOLLOWED)}, got {form['followed'][:50]!r}")
    return _Question(begin, end, _FOLLOWED[form["followed"]], int(workers), seconds)


def _ask(table: ScheduleInsight, question: _Question) -> _Answer:
    found = table.simulate(
        question.begin - _HOUR,
        question.end + question.followed,
        workers=question.workers,
        handler_time=question.handler_time,
        outage=SimulatedOutage(question.begin, question.end),
        most=_MOST_STARTS,
    )
    return _Answer(found, list(found.affected[:_LISTED]), len(found.affected))


def _starts(hour: SimulatedHour) -> tuple[float, float, str]:
    late = f", {hour.late:,} of them late" if hour.late else ""
    return hour.starts - hour.late, hour.late, f"{local_time(hour.time)[:16]}: {hour.starts:,} runs start{late}"


def _busy(hour: SimulatedHour) -> tuple[float, float, str]:
    return hour.busy, 0.0, f"{local_time(hour.time)[:16]}: {short_number(hour.busy)} workers busy"

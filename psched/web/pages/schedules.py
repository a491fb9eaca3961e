"""The list of schedules, and the page of one schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import Response

from psched.cron.explanation import in_words
from psched.cron.zones import load_zone
from psched.error_messages import InvalidValueError, shown
from psched.errors import ConfigError, NotSupportedError
from psched.insight import Page, ScheduleInsight
from psched.model import Policy, Rule, ScheduleRow
from psched.schedules import rule_occurrences
from psched.schedules.audit_result import Verdict
from psched.schedules.derived_state import ScheduleState, StateWord
from psched.store.ledger import Change, LedgerRow
from psched.time_text import local_time
from psched.web.charts import columns
from psched.web.rendering import duration, page
from psched.web.shared_state import SharedState, configured
from psched.web.visitor_input import parse_span, parsed, whole_number

_PAGE = 25
_STRIP = 20
_BACKFILLS = 10
"""The page shows at most this many of the last backfills of a schedule."""
_WEEK = 7 * 86400
_GOOD = ("finished", "enqueued")
_AUDIT_KEPT = 60.0


@dataclass(frozen=True, slots=True)
class Listed:
    """A schedule in the list. `late`: the maximum lateness of its last runs, in seconds."""

    row: ScheduleRow
    state: ScheduleState
    words: str
    there: str
    runs: Sequence[LedgerRow]
    late: float | None


@dataclass(frozen=True, slots=True)
class ShownRun:
    """A future run. `there`: its time in the schedule's zone. `note`: the effect of a clock change on it, or empty."""

    time: float
    there: str
    note: str


@dataclass(frozen=True, slots=True)
class Version:
    """A change of a definition. `changes`: name, old value and new value of each field that differs."""

    change: Change
    changes: Sequence[tuple[str, str, str]]


def schedules_of(shared: SharedState) -> ScheduleInsight:
    """Return the queries about schedules. Raises NotFoundError if the configuration has no section `schedules:`."""
    return configured(shared.insight.schedules, "schedules")


def schedules(request: Request, shared: SharedState) -> Response:
    table, given = schedules_of(shared), request.query_params
    state = given.get("state") or None
    if state is not None and state not in get_args(StateWord):
        raise InvalidValueError(f"state must be one of {', '.join(get_args(StateWord))}, got {shown(state)}")
    time, _, key = given.get("after", "").partition(":")
    after = (parsed(time, parse_span, "after must be seconds, a colon and a key"), key) if key else None
    wanted: dict[str, Any] = {name: given.get(name) or None for name in ("type", "prefix", "owner", "tag")}
    wanted["state"] = state

    def ask() -> tuple[Sequence[Listed], str | None]:
        found = table.page(**wanted, after=after, limit=_PAGE)
        runs = table.last_runs([row.key for row, _ in found.rows], _STRIP)
        listed = [_listed(table, row, state, runs[row.key]) for row, state in found.rows]
        return listed, None if found.after is None else f"{found.after[0]!r}:{found.after[1]}"

    rows, more = shared.answer(("schedules", str(sorted(given.items()))), 2, ask)
    return page(
        request,
        "schedules.html",
        rows=rows,
        more=more,
        given=given,
        wanted={name: value for name, value in wanted.items() if value is not None},
        states=get_args(StateWord),
        now=request.state.status.snapshot.taken,
        is_filtered=any(wanted.values()),
        done=done(request),
    )


def schedule(request: Request, shared: SharedState) -> Response:
    table, key = schedules_of(shared), request.query_params.get("key", "")
    until = whole_number(request.query_params, "until")
    found = table.details(key)
    now = request.state.status.snapshot.taken
    rule = found.versions[-1].rule if found.row is None else found.row.rule
    is_part = rule.backfill is not None
    audited: tuple[Verdict | None, float] | None = (None, now)
    if not is_part:
        audited = shared.slow_answer(("audit", key), _AUDIT_KEPT, lambda: (_verdict(table, key, int(now)), now))
    listed = Page(found.history, found.older) if until is None else table.history_page(key, until)
    runs = [run for run in found.history if run.started is not None]
    outputs = {each.scheduled_time: each for each in table.outputs(key)} if listed.rows else {}
    return page(
        request,
        "schedule.html",
        key=key,
        found=found,
        row=found.row,
        state=found.state,
        rule=rule,
        words=words_of(table, rule),
        now=now,
        next_runs=[ShownRun(each.time, there(each.time, rule), each.note) for each in found.next_runs],
        policy=[] if found.row is None else list(_policy(found.row.policy)),
        history=list(reversed(listed.rows)),
        until=until,
        older=listed.after,
        outputs=outputs,
        versions=_versions(found.versions),
        durations=columns([_taken(run) for run in runs], least=0.001),
        lateness=columns([_late(run, rule) for run in runs], least=0.001),
        longest=max((run.ended - run.started for run in runs if run.started is not None), default=None),
        latest=latest(runs, rule),
        is_audited=audited is not None,
        verdict=None if audited is None else audited[0],
        audited_until=None if audited is None else audited[1],
        actions=table.actions(key=key),
        week=_WEEK,
        backfills=list(table.backfills(key))[-_BACKFILLS:] if table.keeps_backfills and not is_part else [],
        shows_data=shared.settings.web.show_data,
        done=done(request),
    )


def words_of(table: ScheduleInsight, rule: Rule) -> str:
    """Describe in words when a rule is due; an empty string for an unusable rule."""
    try:
        return ", ".join([in_words(rule.cron, table.cron_dialect), *rule_occurrences.restrictions(rule)])
    except ConfigError:  # `row.problem` tells why
        return ""


def latest(runs: Sequence[LedgerRow], rule: Rule) -> float | None:
    """Return the maximum lateness of these runs, in seconds; None if no run started."""
    late = [lateness for run in runs if (lateness := lateness_of(run, rule)) is not None]
    return max(late, default=None)


def lateness_of(run: LedgerRow, rule: Rule) -> float | None:
    """Return how many seconds late a run started; None if no attempt started. Waits for retries count as lateness."""
    if run.started is None:
        return None
    if rule.backfill is not None:  # a backfill has no fixed time
        return 0.0
    return max(0.0, run.started - run.scheduled_time - (0 if run.extra else rule.delay_of(run.key)))


def done(request: Request) -> str | None:
    """Return a sentence about the visitor's last action.

    The address of the page has only a word for this action. A sentence in the address could be forged by a link.
    """
    text = _DONE.get(request.query_params.get("done", ""))
    return text if text is None else text.format(count=whole_number(request.query_params, "count") or 0)


_DONE: Mapping[str, str] = {
    "run-now": "The schedule is due now.",
    "pause": "The schedule is paused.",
    "resume": "The schedule runs again.",
    "modify": "The schedule is changed.",
    "retry": "The task is due now.",
    "cancel": "The task is cancelled, or its run is asked to stop.",
    "delete": "The task is deleted.",
    "all-retry": "{count:,} tasks are due now.",
    "all-cancel": "{count:,} tasks are cancelled, or their runs are asked to stop.",
    "all-delete": "{count:,} tasks are deleted.",
}


def _listed(table: ScheduleInsight, row: ScheduleRow, state: ScheduleState, runs: Sequence[LedgerRow]) -> Listed:
    return Listed(
        row, state, words_of(table, row.rule), there(row.next_run_time, row.rule), runs, latest(runs, row.rule)
    )


def there(time: float, rule: Rule) -> str:
    """Return a time in the schedule's own zone; an empty string if that is not possible."""
    try:
        return f"{datetime.fromtimestamp(time, load_zone(rule.timezone)):%a %Y-%m-%d %H:%M:%S %Z}"
    except (ConfigError, ValueError, OverflowError):
        return ""


def _policy(policy: Policy) -> Iterator[tuple[str, str]]:
    """Yield name and value of each option that differs from the default."""
    for each in fields(policy):
        value = getattr(policy, each.name)
        if value != getattr(Policy(), each.name):
            yield each.name, _shown(value)


def _versions(changes: Sequence[Change]) -> Sequence[Version]:
    """Return the changes, newest first, each with the differences from the change before."""
    listed: list[Version] = []
    before: Mapping[str, Any] | None = None
    for change in changes:
        now = _definition(change)
        known = now if before is None else before
        differing = [(name, _shown(known.get(name)), _shown(value)) for name, value in now.items()]
        listed.append(Version(change, [each for each in differing if each[1] != each[2]]))
        before = now
    return list(reversed(listed))


def _definition(change: Change) -> Mapping[str, Any]:
    rule, policy = change.rule, change.policy
    return {
        "type": change.type,
        **{each.name: getattr(rule, each.name) for each in fields(rule)},
        **{each.name: getattr(policy, each.name) for each in fields(policy)},
    }


def _shown(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _taken(run: LedgerRow) -> tuple[float, float, str]:
    seconds = max(0.0, run.ended - (run.started or run.ended))
    is_good = run.outcome in _GOOD
    return (
        seconds if is_good else 0.0,
        0.0 if is_good else seconds,
        f"{local_time(run.scheduled_time)}: {duration(seconds)}",
    )


def _late(run: LedgerRow, rule: Rule) -> tuple[float, float, str]:
    seconds = lateness_of(run, rule) or 0.0
    return seconds, 0.0, f"{local_time(run.scheduled_time)}: {duration(seconds)} late"


def _verdict(table: ScheduleInsight, key: str, now: int) -> Verdict | None:
    """Return the audit of the last week; None without a ledger."""
    try:
        return table.verdict(key, now - _WEEK, now)
    except NotSupportedError:
        return None

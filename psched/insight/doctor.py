"""The checks of `psched doctor`. They examine the configuration and the database. Each check yields findings."""

from __future__ import annotations

import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from psched import cron
from psched.backends import database_problem, is_driver_error
from psched.config import Section, SectionName, Settings
from psched.errors import ConfigError, PoolerError
from psched.insight.nodes import unrouted_types
from psched.insight.why_waiting import routing_hint
from psched.model import ScheduleRow
from psched.queue.queue import Queue
from psched.schedules.collection import ScheduleCollection
from psched.schedules.derived_state import BROKEN, LEASED, RUNNING, WAITING, ScheduleState, failed_attempts
from psched.schedules.settlement import with_rule_problem
from psched.store import Finding, LeaseStore
from psched.store.node_registry import Node, tz_difference, version_difference
from psched.stored_error_summary import error_summary
from psched.time_text import local_time, span

_MAX_CLOCK_SKEW = 2.0  # in seconds
_MAX_OVERDUE = 20  # the maximum number of occurrences that are listed
_NAMED = 3
"""The maximum number of hooks or schedules that one finding names."""
_TABLE = "table"
"""The subject of the finding that says whether the tables can be used."""

Collection = ScheduleCollection | Queue
Checks = Callable[[Collection], Iterable[Finding]]


def configuration_findings(settings: Settings) -> Iterator[Finding]:
    """Yield findings: which configuration file is used, and whether all users of this host may read the `env_file`."""
    yield Finding("config", True, f"{settings.path}:{settings.environment}")
    file = settings.env_file
    if file is not None and file.stat().st_mode & stat.S_IROTH:
        message = f"every user of this host may read {file}"
        yield Finding("env_file", True, message, warning=True, remedy=f"chmod o= {file}")


def tz_database_finding() -> Finding:
    message = f"{cron.tz_database()} (tzdata); every node needs the same one, or times differ"
    return Finding("tz database", True, message)


def section_findings(
    name: SectionName, section: Section, collection: Collection, writing: bool, more: Checks = lambda _: ()
) -> Iterator[Finding]:
    """Yield the findings about one section and its database, even if the database is unreachable.

    `writing`: also test whether the table can be written; a read-only session cannot test this. `more`: further checks.
    """
    for finding in _findings(section, collection, writing, more):
        yield finding._replace(subject=f"queue {finding.subject}") if name == "queue" else finding


def _findings(section: Section, collection: Collection, writing: bool, more: Checks) -> Iterator[Finding]:
    store = collection.store
    try:
        found = list(store.diagnose(writing))
        unusable = [finding for finding in found if finding.subject == _TABLE and not finding.ok]
        if unusable:
            yield from unusable
            return
        yield from _database_findings(section, store, found)
        nodes = None if store.nodes is None else store.nodes.alive()
        yield from routing_findings(store, nodes)
        yield from _node_findings(nodes or ())
        yield from more(collection)
        if isinstance(collection, ScheduleCollection):
            yield from _overdue_findings(collection, nodes)
            yield from _failing_findings(collection)
    except ConfigError as error:
        yield Finding("pooler" if isinstance(error, PoolerError) else _TABLE, False, str(error))
    except Exception as error:
        if not is_driver_error(error):
            raise
        states = store.is_unavailable(error), store.is_refused(error)
        yield Finding("database", False, database_problem(section.masked_url, error, *states, in_doctor=True))


def _database_findings(section: Section, store: LeaseStore, found: Iterable[Finding]) -> Iterator[Finding]:
    clocks = clock_finding(store)
    yield Finding("database", True, f"{section.masked_url} answers")
    yield from found
    yield clocks


def clock_finding(store: LeaseStore) -> Finding:
    """Return the finding about the difference between this host's clock and the database's clock."""
    before = time.time()
    there = store.now()
    after = time.time()
    skew = there - (before + after) / 2
    message = f"this host's clock is {abs(skew):.1f} s {'behind' if skew > 0 else 'ahead of'} the database's"
    if abs(skew) <= _MAX_CLOCK_SKEW + (after - before) / 2:
        return Finding("clocks", True, message)
    return Finding("clocks", False, message, remedy="synchronise both clocks by NTP (psched uses the database's)")


def routing_findings(store: LeaseStore, nodes: Sequence[Node] | None) -> Iterator[Finding]:
    """Yield findings about the live nodes, and about types with due rows that no live node acquires.

    `nodes`: the live nodes; None if the store does not record nodes. Then there are no findings.
    """
    if nodes is None:
        return
    unrouted = unrouted_types(store, nodes)
    alive = "; ".join(f"{node.name} routes {node.types.describe()}" for node in nodes)
    if not nodes:
        waiting = f"; rows of these types wait: {unrouted}" if unrouted else ""
        yield Finding("routing", True, f"no node is running{waiting}")
    elif not unrouted:
        yield Finding("routing", True, alive)
    else:
        remedy = f"deploy an application that routes them, or extend `types` ({alive})"
        yield Finding("routing", False, f"no live node routes {unrouted}", remedy=remedy)


def hook_findings(section: Section, schedules: ScheduleCollection) -> Iterator[Finding]:
    """Yield a finding if the `on_failure` of any schedule names a hook that the section does not have.

    Reads the rules of all schedules that are not paused: 100,000 schedules take a second.
    """
    unknown: dict[str, str] = {}
    number: Counter[str] = Counter()
    for use in schedules.store.reads.rules():
        name = use.on_failure
        if name is not None and name not in section.hooks and use.rule.backfill is None:
            unknown.setdefault(name, use.key)
            number[name] += use.count
    if not number:
        return
    named = [f"{name!r} ({count:,} schedules, such as {unknown[name]!r})" for name, count in number.most_common(_NAMED)]
    more = f" and {len(number) - _NAMED} more" if len(number) > _NAMED else ""
    instead = "`on_failure:` is called instead" if section.on_failure else "nothing reports their failures"
    message = f"schedules name hooks that `hooks:` does not have: {', '.join(named)}{more}; {instead}"
    known = ", ".join(sorted(section.hooks)) or "none"
    remedy = f"add them to `hooks:` (which has {known}), or `psched modify KEY --on-failure NAME`"
    yield Finding("hooks", bool(section.on_failure), message, warning=bool(section.on_failure), remedy=remedy)


def broken_findings(schedules: ScheduleCollection) -> Iterator[Finding]:
    """Yield a finding if there are schedules that psched cannot run. Reads all schedules: 100,000 take 3 s."""
    broken = schedules.list(state=BROKEN)
    named = [f"{row.key!r} ({row.problem})" for row in islice(broken, _NAMED)]
    if not named:
        return
    more = sum(1 for _ in broken)
    count = len(named) + more
    what = "1 schedule cannot be run" if count == 1 else f"{count:,} schedules cannot be run"
    message = f"{what}: {', '.join(named)}{f' and {more:,} more' if more else ''}"
    remedy = "repair or delete them; psched list --state broken lists them"
    yield Finding("broken", False, message, remedy=remedy)


def _node_findings(nodes: Sequence[Node]) -> Iterator[Finding]:
    """Yield a finding if nodes and this host differ in their tz databases, and another if nodes differ in version."""
    difference = tz_difference(nodes, cron.tz_database())
    if difference is not None:
        yield Finding("nodes", False, difference)
    difference = version_difference(nodes)
    if difference is not None:
        yield Finding("nodes", True, difference, warning=True)


def _overdue_findings(schedules: ScheduleCollection, nodes: Sequence[Node] | None) -> Iterator[Finding]:
    """Yield a finding for each occurrence that is late by more than `overdue_after` or its schedule's `alert_after`.

    `nodes`: the live nodes; None if they are unknown.
    """
    now = schedules.store.now()
    late = list(_late(schedules))
    if len(late) > 1 and not nodes and all(not row.attempts and row.status == WAITING for row in late):
        message = f"no worker has started any of the following {len(late)} schedules"
        yield Finding("overdue", False, message, remedy=routing_hint(nodes, late[0].type))
    for row in late:
        message, remedy = _lateness(row, schedules.state(row, now), nodes)
        yield Finding("overdue", False, message, remedy=remedy)
    if not late:
        bound = span(schedules.overdue_after)
        yield Finding(
            "overdue", True, f"no occurrence is more than {bound} late, and none is later than its alert_after"
        )


def _late(schedules: ScheduleCollection) -> Iterator[ScheduleRow]:
    """Yield the late rows, the oldest occurrence first. Leaves out the rows' data, because data may be large."""
    times = {row.key: row.next_time for row in schedules.overdue(_MAX_OVERDUE)}
    if schedules.store.alerts is not None:
        times |= {overdue.key: overdue.scheduled_time for overdue in schedules.store.alerts.overdue(_MAX_OVERDUE)}
    first = sorted(times, key=times.__getitem__)[:_MAX_OVERDUE]
    rows = {row.key: row for row in schedules.store.get_many(first)}
    for key in first:
        row = rows.get(key)  # None if the schedule was deleted meanwhile
        if row is not None and times[key] in (row.next_time, row.regular_time):  # still the same occurrence
            yield replace(with_rule_problem(row, schedules.cron_dialect), data={})


def _lateness(row: ScheduleRow, state: ScheduleState, nodes: Sequence[Node] | None) -> tuple[str, str | None]:
    """Return a sentence about an overdue occurrence, and the remedy.

    `nodes`: the live nodes; None if they are unknown.
    """
    error = "" if row.last_error is None else f"; the last error: {error_summary(row.last_error)}"
    lateness = span(state.lateness)
    what = f"{row.key!r} (type {row.type!r}): its occurrence of {local_time(row.next_time)} is {lateness} late"
    node = "" if row.node is None else f" on {row.node}"
    if row.problem is not None:
        return f"{what} and cannot be run: {row.problem}", None
    if state.word == RUNNING:
        return f"{what}: attempt {row.attempts} is running{node}{error}", None
    if row.status == RUNNING:
        return f"{what}: attempt {row.attempts}{node} has lost its lease{error}", routing_hint(nodes, row.type)
    if row.attempts:
        due = local_time(row.next_run_time)
        failed = "1 attempt has failed" if row.attempts == 1 else f"{row.attempts} attempts have failed"
        what = f"{what}: {failed}{error}; the next attempt is due {due}"
        return what, f"psched show {row.key!r} prints the whole error"
    if state.word == LEASED:
        return f"{what}: it is running, or waits for a retry", None
    return f"{what} and was not started", routing_hint(nodes, row.type)


def _failing_findings(schedules: ScheduleCollection) -> Iterator[Finding]:
    failing = list(schedules.failing())
    if not failing:
        return
    worst = max(failing, key=lambda row: (failed_attempts(row), -row.next_time))
    count = f"{len(failing)} schedules are failing" if len(failing) > 1 else "1 schedule is failing"
    attempts = failed_attempts(worst)
    times = f"{attempts} attempts" if attempts > 1 else "1 attempt"
    error = "" if worst.last_error is None else f", the last error: {error_summary(worst.last_error)}"
    what = f"{worst.key!r} (type {worst.type!r}) with {times} of its occurrence of {local_time(worst.next_time)}{error}"
    remedy = "psched history --failed lists them"
    yield Finding("failing", True, f"{count}; the worst is {what}", warning=True, remedy=remedy)

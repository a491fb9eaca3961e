"""Queries about the schedules of one table."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile

from psched.cron import CronDialect
from psched.error_messages import InvalidValueError
from psched.errors import ConfigError, NotFoundError
from psched.insight.change_preview import ChangePreview, change_preview
from psched.insight.forecast import HOUR, Forecast, forecast
from psched.insight.nodes import merged
from psched.insight.pages import Page, first_page
from psched.insight.proof import ProofPage, proof_page, timed_audits
from psched.insight.simulation import SimulatedOutage, Simulation, handler_times, simulate, starts_in
from psched.insight.table_insight import TableInsight
from psched.insight.timeline import Timeline, timeline
from psched.insight.troubled_runs import troubled_runs
from psched.insight.week_ahead import WEEK, WeekAhead, week_ahead
from psched.insight.why_waiting import Reason, why_waiting
from psched.keys import check_key
from psched.model import ScheduleFilter, ScheduleRow
from psched.retry_wait import check_attempts, check_wait
from psched.schedules import rule_occurrences
from psched.schedules.audit_result import Verdict
from psched.schedules.backfills import BackfillState, ledger_keys, with_backfill
from psched.schedules.collection import ScheduleCollection
from psched.schedules.derived_state import ScheduleState, StateWord
from psched.schedules.modification import Changes, Modification
from psched.schedules.validation import check_times
from psched.store.counts import RuleUse
from psched.store.ledger import Change, KeptOutput, LedgerFilter, LedgerRow
from psched.time_text import local_time

_RUNS = 20
"""The maximum number of runs, next occurrences and versions of one schedule that are returned."""
MOST_SIMULATED = 3_000_000
"""The maximum number of occurrences in one simulation. With so many, a simulation takes about a minute."""
_LONGEST_SIMULATION = 10
"""The maximum length of a simulation, in years. It is limited because a simulation keeps numbers for each hour."""
_MEASURED_RUNS = 10
"""The number of a schedule's last runs whose durations are averaged."""

_WAITING = 200
"""The maximum number of late schedules in a timeline, and also the maximum number of failing schedules."""

_LONGEST_COUNT = 10.0
"""Seconds of processor time after which counting the starts of a week ends."""

Place = tuple[float, str]
"""Where a page of schedules begins: `next_run_time` and key of the last schedule of the page before."""


@dataclass(frozen=True, slots=True)
class NextRun:
    """A future run at `time` (unix seconds). `note`: the effect of a clock change on its occurrence; often empty."""

    time: float
    note: str


@dataclass(frozen=True, slots=True)
class ScheduleDetails:
    """One schedule. For a deleted schedule, `row` and `state` are None, and `waits` is empty.

    - `waits`: why the schedule is not running.
    - `next_runs`: the next runs by its rule.
    - `history`: the last entries of the ledger, the oldest first; empty without a ledger.
    - `versions`: the last changes of the definition, the oldest first; empty without a ledger.
    - `older`: the `until` with which `history_page` returns earlier entries; None if there are no earlier
      entries.
    """

    row: ScheduleRow | None
    state: ScheduleState | None
    waits: Sequence[Reason]
    next_runs: Sequence[NextRun]
    history: Sequence[LedgerRow]
    versions: Sequence[Change]
    older: int | None = None


class ScheduleInsight(TableInsight):
    """Queries about the schedules of one table. Reads only; safe to use from several threads."""

    def __init__(self, schedules: ScheduleCollection) -> None:
        """`schedules`: must be opened with `read_only`."""
        super().__init__(schedules.store)
        self._schedules = schedules
        self._store = schedules.store

    def page(
        self,
        *,
        type: str | None = None,
        state: StateWord | None = None,
        prefix: str | None = None,
        owner: str | None = None,
        tag: str | None = None,
        after: Place | None = None,
        limit: int = 50,
    ) -> Page[tuple[ScheduleRow, ScheduleState], Place]:
        """Return the first schedules after `after` that match, sorted by due time.

        None in an argument matches any schedule.

        `prefix`: the start of the key.
        """
        now = self._store.now()
        known = type if self._store.keeps_types else None
        wanted = ScheduleFilter(known, prefix, owner=owner, tag=tag, after=after, page=limit + 1)
        rows = self._schedules.candidates(wanted, state, now)
        return first_page(
            ((row, self._schedules.state(row, now)) for row in rows),
            limit,
            lambda each: type in (None, each[0].type) and state in (None, each[1].word),
            lambda each: (each[0].next_run_time, each[0].key),
        )

    def rows(
        self,
        *,
        type: str | None = None,
        state: StateWord | None = None,
        prefix: str | None = None,
        owner: str | None = None,
        tag: str | None = None,
        after: Place | None = None,
    ) -> Iterator[tuple[ScheduleRow, ScheduleState]]:
        """Yield all schedules after `after` that match, sorted by due time. The arguments are those of `page`."""
        now = self._store.now()
        rows = self._schedules.list(type=type, state=state, prefix=prefix, owner=owner, tag=tag, after=after)
        return ((row, self._schedules.state(row, now)) for row in rows)

    def late(self) -> Iterator[tuple[ScheduleRow, ScheduleState]]:
        """Yield up to 1,000 overdue schedules with their data, the most overdue first."""
        now = self._store.now()
        return ((row, self._schedules.state(row, now)) for row in self._schedules.late())

    def row(self, key: str) -> ScheduleRow:
        """Return a schedule as it is stored now. Raises NotFoundError."""
        return self._schedules[key].metadata()

    def details(self, key: str) -> ScheduleDetails:
        """Return one schedule, even a deleted one. Raises NotFoundError if nothing is known about it."""
        ledger = self._store.ledger
        history, older = self._last_entries(key, None)
        versions = [] if ledger is None else ledger.changes(key)[-_RUNS:]
        try:
            row = self._schedules[key].metadata()
        except NotFoundError:
            if not history and not versions:
                raise
            return ScheduleDetails(None, None, (), (), history, versions, older)
        now = self._store.now()
        waits = why_waiting(row, self._store, now)
        state, next_runs = self._schedules.state(row, now), self._next_runs(row)
        return ScheduleDetails(row, state, waits, next_runs, history, versions, older)

    def history_page(self, key: str, until: int | None = None) -> Page[LedgerRow, int]:
        """Return the last ledger entries of the schedule's occurrences up to `until`, the oldest first.

        `until`: unix seconds; None: no limit. To get the entries before this page, call again with the page's `after`
        as `until`. The page is empty without a ledger.
        """
        check_key(key)
        check_times(until=until)
        return Page(*self._last_entries(key, until))

    def _last_entries(self, key: str, until: int | None) -> tuple[Sequence[LedgerRow], int | None]:
        """Return the last entries up to `until`, and the `until` for earlier entries.

        The second value is None if there are no earlier entries.
        """
        ledger = self._store.ledger
        rows = [] if ledger is None else list(ledger.rows(LedgerFilter(key, until=until, last=_RUNS + 1)))
        if len(rows) <= _RUNS:
            return rows, None
        before, *shown = rows  # a page may repeat entries of one occurrence, but the next page must begin further back
        is_same = before.scheduled_time == shown[-1].scheduled_time
        return shown, before.scheduled_time - is_same

    def _next_runs(self, row: ScheduleRow) -> list[NextRun]:
        """Return the next regular runs; an empty list while the schedule is paused or its rule is broken."""
        if row.paused:
            return []
        rule, regular, dialect = row.rule, row.regular(), self._schedules.cron_dialect
        before = regular.next_time - 1
        try:
            most = _RUNS if rule.max_runs is None else min(_RUNS, rule.max_runs - (row.runs or 0))
            found = []
            for time in rule_occurrences.times(rule, regular.next_time, most, dialect):
                found.append(NextRun(row.run_time(time), rule_occurrences.clock_note(rule, before, time, dialect)))
                before = time
        except ConfigError:  # `row.problem` tells why
            return []
        return found

    def preview(self, key: str, changes: Changes) -> ChangePreview:
        """Return what `Schedule.modify` with these values would change now. Raises the errors of `Schedule.modify`."""
        modification = Modification(key, changes, self._store, self._schedules.cron_dialect)
        before = self._schedules[key].metadata()
        after = modification.applied_to(before)
        return change_preview(before, after, self._store.now(), self._schedules.cron_dialect)

    def calendars(self) -> Sequence[str]:
        """Return the names of the calendars that schedules may exclude. Empty if the store keeps no calendars."""
        return [] if self._store.calendars is None else [each.name for each in self._schedules.calendars.list()]

    def last_runs(self, keys: Sequence[str], last: int = _RUNS) -> Mapping[str, Sequence[LedgerRow]]:
        """Return the last ledger entries of each of these schedules, the oldest first. Empty without a ledger."""
        ledger = self._store.ledger
        return dict.fromkeys(keys, ()) if ledger is None else ledger.last_rows(keys, last)

    def audit(self, since: int, until: int, keys: Sequence[str] | None = None) -> Iterator[Verdict]:
        """Yield the audit of each schedule, or of each of `keys`, from the ledger; see `ScheduleCollection.audit`."""
        return self._schedules.audit(since, until, keys=keys)

    def verdict(self, key: str, since: int, until: int) -> Verdict:
        """Return the audit of one schedule from the ledger. An audit that takes more than 20 s has an unknown verdict.

        Raises NotSupportedError if the store keeps no ledger.
        """
        return next(timed_audits(self._schedules, [key], since, until)).verdict

    def proof(
        self,
        since: int,
        until: int,
        *,
        prefix: str = "",
        late: float | None = None,
        after: str = "",
        limit: int = 25,
        keep: bool = False,
    ) -> ProofPage:
        """Return the audits of the first schedules after the key `after`, including deleted schedules.

        `prefix`: the start of the schedules' keys. `late`: see `ScheduleCollection.audit`. `keep`: keep the records
        that the audits used. On `rdb_compat`, a schedule that another program added is only included if `prefix` is its
        whole key. Raises NotSupportedError if the store keeps no ledger.
        """
        for name, text in (("prefix", prefix), ("after", after)):
            if text:
                check_key(text, name)
        keys = self._recorded(prefix, after)
        return proof_page(self._schedules, keys, since, until, late, limit, keep)

    def _recorded(self, prefix: str, after: str) -> Iterator[str]:
        """Yield the keys in the ledger after `after` that start with the prefix.

        If the prefix is itself the key of a schedule, this key is yielded even if it is not in the ledger.
        """
        ledger = self._schedules.ledger
        if prefix and after < prefix:
            if self._store.is_backfill(prefix):
                return
            if ledger.changes(prefix) or self._store.get(prefix) is not None:
                yield prefix
            after = prefix
        found = takewhile(lambda key: key.startswith(prefix), ledger.keys(after))
        yield from (key for key in found if not self._store.is_backfill(key))

    @property
    def keeps_backfills(self) -> bool:
        """Whether schedules can have backfills. If not, `backfills` raises NotSupportedError."""
        return self._store.keeps_policies

    def backfills(self, key: str | None = None) -> Iterator[BackfillState]:
        """Yield the backfills of a schedule, or of all schedules; see `BackfillCollection.list`."""
        return self._schedules.backfills.list(key)

    @property
    def cron_dialect(self) -> CronDialect:
        return self._schedules.cron_dialect

    def overdue(self, limit: int = 50) -> list[ScheduleRow]:
        """Return the schedules that are late now; see `ScheduleCollection.overdue`."""
        return self._schedules.overdue(limit)

    def failing(self, key: str | None = None) -> Iterator[ScheduleRow]:
        """Yield the schedules that are failing now; see `ScheduleCollection.failing`."""
        return self._schedules.failing(key)

    def history(
        self,
        key: str | None = None,
        *,
        failed: bool = False,
        late: float | None = None,
        since: float | None = None,
        until: float | None = None,
        last: int | None = None,
    ) -> Iterator[LedgerRow]:
        """Yield ledger entries; see `ScheduleCollection.history`.

        `late`: only entries with `had_trouble`, and entries whose run started more than `late` seconds late. With
        `late`, `failed` has no further effect. Raises NotFoundError for a key that no schedule has or had.
        """
        settled = self._schedules.history(key, failed=failed, since=since, until=until, last=last)
        ledger = self._schedules.ledger
        is_unknown = key is not None and self._store.get(key) is None and not ledger.changes(key)
        if is_unknown and next(ledger.rows(LedgerFilter(key, page=1)), None) is None:
            raise NotFoundError(f"no schedule has or had the key {key!r}")
        if late is None:
            return settled
        keys = [None] if key is None else ledger_keys(self._store, ledger, key)
        troubled = (troubled_runs(ledger, LedgerFilter(each, since=since, until=until), late) for each in keys)
        found = heapq.merge(*troubled, key=lambda row: (row.scheduled_time, row.ended))
        rows = map(with_backfill, found) if self._store.keeps_policies else found
        return rows if last is None else iter(deque(rows, last))

    def outputs(self, key: str | None = None) -> Iterator[KeptOutput]:
        """Yield the kept outputs of the last runs; see `ScheduleCollection.outputs`."""
        return self._schedules.outputs(key)

    def troubles(self, since: float | None = None, until: float | None = None, last: int = 50) -> Sequence[LedgerRow]:
        """Return the last entries with `had_trouble` that were settled from `since` to `until`, the oldest first.

        `since`, `until`: unix seconds. Empty without a ledger. For schedules that are late now, see `overdue`.
        """
        ledger = self._store.ledger
        wanted = LedgerFilter(failed=True, since=since, until=until, last=last)
        return [] if ledger is None else list(ledger.rows(wanted))

    def timeline(self, seconds: float, until: float | None = None) -> Timeline:
        """Return the runs of the `seconds` before `until` (unix seconds).

        `until` None: the runs of the last `seconds`, and what runs and waits now. Raises NotSupportedError if the store
        keeps no ledger.
        """
        ledger, now = self._schedules.ledger, self._store.now()
        waiting = () if until is not None else (*self.overdue(_WAITING), *islice(self.failing(), _WAITING))
        rows = {row.key: row for row in waiting}
        nodes = [] if until is not None else merged(self.known_nodes() or ())
        end = now if until is None else min(until, now)
        return timeline(ledger, end - seconds, end, now, nodes, rows.values())

    def forecast(self, hours: int = WEEK) -> Forecast:
        """Return how many runs start in each of the next `hours` full hours, and how many workers they keep busy.

        Reads the rules of all schedules, page by page. For 100,000 schedules this takes a second.
        """
        begin = int(self._store.now()) // HOUR * HOUR + HOUR
        return forecast(self._rules(), begin, hours, self._schedules.cron_dialect, self._durations)

    def _rules(self) -> Iterator[RuleUse]:
        return (use for use in self._store.reads.rules() if use.rule.backfill is None)

    def week_ahead(self) -> WeekAhead:
        """Return the forecast of the next week, the minutes in which many runs start, and the clock changes.

        Reads the same rows as `forecast`. Takes up to about 30 s of processor time. The result says what was left out.
        """
        begin = int(self._store.now()) // HOUR * HOUR + HOUR
        uses, dialect = list(self._rules()), self._schedules.cron_dialect
        return week_ahead(uses, begin, dialect, self._durations, _LONGEST_COUNT)

    def simulate(
        self,
        begin: float,
        end: float,
        *,
        workers: int,
        handler_time: float | None = None,
        outage: SimulatedOutage | None = None,
        late_after: float = 60.0,
        most: int = MOST_SIMULATED,
    ) -> Simulation:
        """Simulate the current schedules from `begin` to `end` (unix seconds).

        - `workers`: the number of workers. Each runs one task at a time.
        - `handler_time`: the seconds of each run. None: as long as the last runs in the ledger.
        - `outage`: a time in which no worker runs.
        - `late_after`: the seconds by which a run may start late.
        - `most`: the maximum number of occurrences. A million of them take about 20 seconds of processor time.

        Raises ValueError for more than `most` occurrences, for a range of more than 10 years, and for an unusable range
        or number. Without `handler_time`, raises ValueError if the ledger has no run.
        """
        _check_simulation(begin, end, workers, handler_time, outage)
        rows = [row for row in self._store.list() if not row.is_backfill]
        now, dialect = self._store.now(), self._schedules.cron_dialect
        if (count := starts_in(rows, begin, end, dialect)) > most:
            raise InvalidValueError(
                f"the schedules have {count:,} occurrences in this range; expected at most {most:,}; shorten the range"
            )
        times = None
        if handler_time is None:
            if self._store.ledger is None:
                raise InvalidValueError(
                    "this store keeps no ledger, so the duration of runs is unknown; give handler_time "
                    "(--handler-time SEC)"
                )
            times = handler_times([row for row in rows if not row.paused], self._durations)
        found = simulate(
            rows,
            (lambda _: handler_time or 0.0) if times is None else times.of,
            begin,
            end,
            now=now,
            workers=workers,
            dialect=dialect,
            outage=outage,
            lease_time=self._schedules.source.times.alive_time,
            late_after=late_after,
        )
        return found if times is None else replace(found, unmeasured=times.unmeasured)

    def _durations(self, keys: Collection[str]) -> Mapping[str, Sequence[float]]:
        """Return how many seconds the last runs of each of these schedules took."""
        found = self.last_runs(list(keys), _MEASURED_RUNS)
        return {
            key: [row.ended - row.started for row in rows if row.started is not None] for key, rows in found.items()
        }


def _check_simulation(
    begin: float, end: float, workers: int, handler_time: float | None, outage: SimulatedOutage | None
) -> None:
    """Raise ValueError for a range, an outage or a number that cannot be simulated."""
    check_times(begin=begin, end=end)
    if end <= begin:
        raise InvalidValueError(f"the range must end after its start {local_time(begin)}, got {local_time(end)}")
    if end - begin > _LONGEST_SIMULATION * 366 * 86400:
        raise InvalidValueError(
            f"the range from {local_time(begin)} to {local_time(end)} is too long; expected at most "
            f"{_LONGEST_SIMULATION} years; shorten the range"
        )
    check_attempts("workers", workers)
    if handler_time is not None:
        check_wait("handler_time", handler_time)
    if outage is not None:
        check_times(outage_begin=outage.begin, outage_end=outage.end)
        if not begin <= outage.begin < outage.end <= end:
            times = [
                f"{local_time(first)} … {local_time(last)}"
                for first, last in ((begin, end), (outage.begin, outage.end))
            ]
            raise InvalidValueError(f"the outage must end after its start, and be within {times[0]}; got {times[1]}")

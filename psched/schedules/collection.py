"""All schedules of one table."""

from __future__ import annotations

import builtins
import heapq
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, Unpack, get_args

from psched import cron
from psched.acquisition.table_base import TableBase
from psched.async_methods import async_iterator_twin, async_twin
from psched.backends import open_stores
from psched.config import Section
from psched.error_messages import InvalidValueError, shown
from psched.errors import ConfigError, NotSupportedError
from psched.keys import backfill_of, check_key
from psched.model import NEVER, NO_OCCURRENCE, LeaseTimes, NewSchedule, ScheduleFilter, ScheduleRow
from psched.payload import pack
from psched.retry_wait import check_attempts, check_wait
from psched.schedules.audit_reader import AuditedSchedule, AuditReader
from psched.schedules.audit_result import Verdict
from psched.schedules.audited_records_hash import AuditEvidence
from psched.schedules.backfills import BackfillCollection, ledger_keys, with_backfill
from psched.schedules.calendar_collection import CalendarCollection
from psched.schedules.derived_state import (
    DUE,
    ENDED,
    FAILING,
    LEASED,
    OVERDUE,
    PAUSED,
    RETRYING,
    RUNNING,
    WAITING,
    ScheduleState,
    StateWord,
    failed_attempts,
    overdue_after,
    state_of,
)
from psched.schedules.ledger_audit import GRACE, AuditScope
from psched.schedules.new_rows import new_rows, warn_of_written
from psched.schedules.schedule_handle import Schedule
from psched.schedules.settlement import ScheduleSettlement, rule_problem, with_rule_problem
from psched.schedules.validation import Terms, check_distinct, check_times, warn_of_step
from psched.store import CONNECTIONS, ScheduleStore, TaskStore
from psched.store.ledger import KeptOutput, Ledger, LedgerFilter, LedgerRow
from psched.time_check import check_time

_FAILING = 1000
"""The maximum number of failing schedules in one list."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """The configured defaults of all schedules. `Section` describes them."""

    timezone: str = "UTC"
    cron_dialect: cron.CronDialect = "vixie"
    ledger_retention: float = 400 * 86400.0
    ledger_count: int = 100_000
    poll_interval: float = 1.0
    max_attempts: int | None = None
    stats_retention: float = 30 * 86400.0


class ScheduleCollection(TableBase):
    """All schedules of one table. Usable as a context manager.

    Safe to use from several threads, but not across a fork.
    """

    store: ScheduleStore

    def __init__(self, store: ScheduleStore, times: LeaseTimes, defaults: Defaults) -> None:
        kept = (defaults.ledger_retention, defaults.ledger_count)
        self._settlement = ScheduleSettlement(
            store, defaults.cron_dialect, *kept, defaults.max_attempts, stats_retention=defaults.stats_retention
        )
        super().__init__(store, self._settlement, times)
        self._defaults = defaults
        self.overdue_after = overdue_after(times.retry_wait)
        """A late occurrence is overdue after this many seconds: twice the longest `retry_wait`, at least a minute."""

    @property
    def cron_dialect(self) -> cron.CronDialect:
        """The dialect of cron expressions."""
        return self._defaults.cron_dialect

    def __getitem__(self, key: str) -> Schedule:
        """Return a reference to a schedule. The schedule need not exist."""
        return Schedule(self.store, check_key(key), self._defaults.cron_dialect)

    def add(
        self,
        key: str,
        type: str,
        *,
        cron: str,
        delay: float = 0,
        timezone: str | None = None,
        next_time: int | None = None,
        next_run_time: float | None = None,
        data: Mapping[str, Any] | None = None,
        **terms: Unpack[Terms],
    ) -> Schedule:
        """Create a schedule and return a reference to it.

        Its first occurrence is the first match at or after `next_time` (default: now, by the database's clock). It runs
        `delay` seconds after that, or at `next_run_time` if given. `timezone` defaults to the configured time zone.

        Which occurrences there are:

        - `start`, `end`: no occurrence comes before `start` or after `end` (unix seconds).
        - `spread`: seconds, up to 7 days. Each schedule has its own delay from 0 to `spread`, computed from its key
          (docs/cron.md).
        - `max_runs`: the schedule ends after this many regular occurrences have run. Skipped occurrences do not count.
        - `exclude`: names of calendars (`calendars`). There is no occurrence on their days.

        How late and failing occurrences are handled (docs/ledger.md):

        - `catch_up`: which occurrences run if several are due. `all` (the default): all of them. `latest`: only the
          last. `none`: only the last, if it is at most `max_lateness` (default: a minute) late.
        - `max_lateness`: an occurrence that would start more than this many seconds late is skipped.
        - `alert_after`: an occurrence that is not finished this many seconds after its time (delay included) is
          reported as overdue.
        - `max_attempts`: an occurrence fails for good if this many attempts fail; then the next occurrence follows.
        - `overlap`: if the previous occurrence is not settled yet, a due occurrence waits (`wait`, the default) or is
          skipped (`skip`).
        - `pause_after`: the schedule is paused after this many regular occurrences have failed in a row.
        - `retry_wait`: the wait after a failed attempt: seconds, or a `psched.backoff`.
        - `timeout`: a run is stopped after this many seconds.
        - `on_failure`: the hook for failed occurrences, one of `hooks` in the configuration.

        `max_attempts`, `retry_wait`, `timeout` and `on_failure` override the values of the type and of the
        configuration.

        `owner`, `description` and `tags` (up to 50 texts) describe the schedule; lists can be filtered by owner and
        tag.

        Raises:
            AlreadyExistsError: a schedule has this key.
            ConfigError: the cron expression or the time zone is not valid.
            ValueError: the key, the data or the policy is not valid.
            NotSupportedError: the store keeps no policies.
        """
        content = {} if data is None else data
        new = NewSchedule(key, type, cron, delay, timezone, next_time, next_run_time, content, **terms)
        [row] = new_rows([new], self.store, self._defaults.timezone, self._defaults.cron_dialect)
        self.store.add(row.key, row.type, row.rule, row.next_time, row.next_run_time, row.data, row.policy)
        warn_of_written([row], self._defaults.cron_dialect)
        return self[key]

    def add_many(self, schedules: Iterable[NewSchedule]) -> builtins.list[str]:
        """Create many schedules. Return the keys that existed before; their schedules are not changed.

        All are written in one transaction, on Redis in transactions of 500. A call that failed halfway may be repeated.
        Raises ConfigError, ValueError and NotSupportedError like `add`, before anything is written.
        """
        rows = new_rows(schedules, self.store, self._defaults.timezone, self._defaults.cron_dialect)
        check_distinct([row.key for row in rows], "schedule")
        existing = self.store.add_many(rows) if rows else []
        known = set(existing)
        warn_of_written((row for row in rows if row.key not in known), self._defaults.cron_dialect)
        return existing

    def rows_of(self, schedules: Iterable[NewSchedule]) -> builtins.list[ScheduleRow]:
        """Return the rows that `add_many` would write. Raises like `add_many`, but changes nothing."""
        rows = new_rows(schedules, self.store, self._defaults.timezone, self._defaults.cron_dialect)
        check_distinct([row.key for row in rows], "schedule")
        for row in rows:
            pack(row.data, max_size=self.store.max_data_size)
            warn_of_step(row.rule.cron, self._defaults.cron_dialect)
        return rows

    def check(self, new: NewSchedule) -> None:
        """Raise the error that `add_many` would raise for this schedule. Reads only the calendars that `new` names."""
        checked = new if new.next_time is not None else new._replace(next_time=0)
        for row in new_rows([checked], self.store, self._defaults.timezone, self._defaults.cron_dialect):
            pack(row.data, max_size=self.store.max_data_size)

    def list(
        self,
        *,
        type: str | None = None,
        state: StateWord | None = None,
        prefix: str | None = None,
        owner: str | None = None,
        tag: str | None = None,
        after: tuple[float, str] | None = None,
    ) -> Iterator[ScheduleRow]:
        """Yield the schedules with this type, state, beginning of the key, owner and tag, ordered by due time.

        None matches any value. `after`: `next_run_time` and key of the last schedule of the previous page. A paused
        schedule that waits for a run by `run_now` is only listed without `state`. Raises ValueError for a wrong value.
        Raises NotSupportedError for an owner or tag if the store keeps no owners and tags.
        """
        for name, text in (("type", type), ("prefix", prefix), ("owner", owner), ("tag", tag)):
            if text is not None:
                check_key(text, name)
        if not self.store.keeps_policies and (owner, tag) != (None, None):
            raise NotSupportedError("this store keeps no owner and no tags; use `type: rdb` or `type: redis`")
        if state is not None and state not in get_args(StateWord):
            raise InvalidValueError(f"state must be one of {', '.join(get_args(StateWord))}, got {shown(state)}")
        wanted = ScheduleFilter(type, prefix, owner=owner, tag=tag, after=after)
        if state is None:
            return self.candidates(wanted)
        now = self.store.now()
        return (row for row in self.candidates(wanted, state, now) if self.state(row, now).word == state)

    def candidates(
        self, wanted: ScheduleFilter, state: StateWord | None = None, now: float = 0.0
    ) -> Iterator[ScheduleRow]:
        """Yield schedules that match the filter: all that have `state`, and perhaps some in other states.

        `now`: the time of the state, by the database's clock. Leaves out paused schedules that wait for a run by
        `run_now`. Each query uses an index. For most states the result has few schedules in other states.
        """
        # On a store that knows no holders, an overdue schedule may be due only since its lease has ended.
        late = self.overdue_after if self.store.knows_holders else 0.0
        bounds = [{}] if state is None else _bounds(state, now, late)
        lists = [self.store.list(replace(wanted, **each)) for each in bounds]
        return self._with_problems(lists[0] if len(lists) == 1 else _merged(lists))

    def late(self) -> Iterator[ScheduleRow]:
        """Yield up to 1,000 overdue schedules, the most overdue first.

        Unlike `overdue`, this yields them with their data.
        """
        now = self.store.now()
        keys = [late.key for late in self.overdue(_FAILING)]
        found = {row.key: row for row in self._with_problems(self.store.get_many(keys))}
        return (found[key] for key in keys if key in found and self.state(found[key], now).is_overdue)

    def _with_problems(self, rows: Iterable[ScheduleRow]) -> Iterator[ScheduleRow]:
        return (with_rule_problem(row, self._defaults.cron_dialect) for row in rows)

    @property
    def calendars(self) -> CalendarCollection:
        """The named calendars of this table. Schedules may exclude them."""
        return CalendarCollection(self.store, self._defaults.cron_dialect)

    @property
    def backfills(self) -> BackfillCollection:
        """The backfills of this table: runs of past occurrences, in addition to the regular runs."""
        return BackfillCollection(self.store, self._defaults.cron_dialect)

    @property
    def ledger(self) -> Ledger:
        """The ledger of this table. Raises NotSupportedError if the store keeps no ledger."""
        ledger = self.store.ledger
        if ledger is None:
            raise NotSupportedError(
                "this store keeps no ledger of what ran; use `type: rdb` or `type: redis`, or rdb_compat with `ledger:`"
            )
        return ledger

    def history(
        self,
        key: str | None = None,
        *,
        failed: bool = False,
        since: float | None = None,
        until: float | None = None,
        last: int | None = None,
    ) -> Iterator[LedgerRow]:
        """Yield ledger entries.

        Entries of one schedule are ordered by occurrence, entries of all schedules by the time of settlement.

        - `failed`: only entries that had a failed or lost attempt, or were skipped for another reason than a pause.
        - `since`, `until`: unix seconds. With a key they limit the occurrences, without a key the times of settlement.
        - `last`: only this many of these entries, from the end.

        Entries of backfills have the key of their schedule, and the number of the backfill. Raises NotSupportedError if
        the store keeps no ledger, and ValueError for a wrong time, key or number.
        """
        if key is not None:
            check_key(key)
        check_times(since=since, until=until)
        if last is not None:
            check_attempts("last", last)
        ledger, wanted = self.ledger, LedgerFilter(key, failed, since, until, last)
        if key is None:
            rows: Iterable[LedgerRow] = ledger.rows(wanted)
        else:
            of_keys = [ledger.rows(replace(wanted, key=each)) for each in ledger_keys(self.store, ledger, key)]
            rows = heapq.merge(*of_keys, key=attrgetter("scheduled_time", "ended"))
            rows = rows if last is None else deque(rows, last)
        return map(with_backfill, rows) if self.store.keeps_policies else iter(rows)

    def outputs(self, key: str | None = None) -> Iterator[KeptOutput]:
        """Yield the stored outputs of the last 20 runs of one schedule, or of each schedule, the oldest first.

        Raises NotSupportedError if the store keeps no ledger, and ValueError for a wrong key.
        """
        if key is not None:
            check_key(key)
        ledger = self.ledger
        keys = ledger.keys() if key is None else ledger_keys(self.store, ledger, key)
        return chain.from_iterable(map(ledger.outputs, keys))

    def audit(
        self, since: int, until: int, *, late: float | None = None, keys: Collection[str] | None = None
    ) -> Iterator[Verdict]:
        """Yield for each schedule whether the ledger proves that every due occurrence ran.

        The audit covers the occurrences from `since` to `until` (unix seconds, both included); for a deleted schedule,
        those before its deletion. Each of these occurrences must be finished, running now, or skipped for a reason that
        the schedule's policy or a pause permits. No other occurrence may have run.

        `keys`: the schedules to audit; None: all. `late`: the maximum number of seconds that a run may begin late. If
        `late` is None, a run may begin late, but an occurrence that has not run is missing after 10 s, or after twice
        `poll_interval` if that is longer.

        Raises NotSupportedError if the store keeps no ledger, and ValueError for a wrong value.
        """
        if isinstance(keys, str):
            raise InvalidValueError(f"keys must be a collection of keys, such as [{shown(keys)}], got {shown(keys)}")
        for key in () if keys is None else keys:
            self._check_audited(key)
        scope = self._scope(since, until, late)
        audits = self._audits.audits(self._audited() if keys is None else dict.fromkeys(keys), scope)
        return (each.verdict for each in audits if each.verdict is not None)

    def audits_with_evidence(
        self,
        keys: Iterable[str],
        since: int,
        until: int,
        *,
        late: float | None = None,
        keep: bool = False,
        seconds: float = math.inf,
    ) -> Iterator[AuditedSchedule]:
        """Audit these schedules like `audit`, and also yield the hash of the records that each audit read.

        With `keep`, the records themselves are also kept. If reading the ledger of a schedule takes longer than
        `seconds`, its audit has neither a verdict nor evidence.
        """
        scope = self._scope(since, until, late)
        wanted = dict.fromkeys(map(self._check_audited, keys))
        return self._audits.audits(wanted, scope, partial(AuditEvidence, keep), seconds)

    def _check_audited(self, key: str) -> str:
        check_key(key)
        if self.store.is_backfill(key):
            raise InvalidValueError(
                f"{key!r} is a backfill, which is audited with its schedule {backfill_of(key)[0]!r}"
            )
        return key

    def _scope(self, since: int, until: int, late: float | None) -> AuditScope:
        check_time("since", since)
        check_time("until", until)
        if late is not None:
            check_wait("late", late)
        grace = max(GRACE, 2 * self._defaults.poll_interval) if late is None else late
        return AuditScope(since, until, late, grace)

    def _audited(self) -> Iterator[str]:
        """Yield the keys of the schedules to audit.

        First come the schedules in the ledger. Then come schedules that another program added without an entry in the
        ledger.
        """
        recorded = set()
        ledger = self.ledger
        for key in ledger.keys():  # noqa: SIM118 – the ledger is not a mapping
            recorded.add(key)
            if not self.store.is_backfill(key):
                yield key
        for row in self.store.list():
            if row.key not in recorded and not row.is_backfill:
                yield row.key

    @property
    def _audits(self) -> AuditReader:
        return AuditReader(self.store, self.ledger, self._defaults.cron_dialect, self._defaults.ledger_retention)

    def state(self, row: ScheduleRow, now: float) -> ScheduleState:
        """Return the state of `row` at `now` (by the database's clock)."""
        return state_of(row, now, self.overdue_after)

    def overdue(self, limit: int) -> builtins.list[ScheduleRow]:
        """Return up to `limit` overdue schedules, the most overdue first.

        An overdue schedule has been due for at least `overdue_after` seconds: no worker has acquired it, or an attempt
        has failed. In the returned rows `data` is {}, and `problem` does not consider the data. On `rdb_compat` only
        schedules that no worker acquires are returned, because its table does not distinguish a run from the wait for a
        retry.
        """
        age = self.overdue_after
        found = {row.key: row for row in (*self.store.long_due(age, limit), *self.store.failing(age, limit))}
        return sorted(found.values(), key=lambda row: row.next_time + row.delay)[:limit]

    def failing(self, key: str | None = None) -> Iterator[ScheduleRow]:
        """Yield the schedules whose next occurrence has failed at least once and is retried.

        `key`: only this schedule. In the rows `data` is {}. On `rdb_compat` this yields nothing, because its table does
        not count attempts.
        """
        if key is None:
            yield from self.store.failing(0, _FAILING)
        else:
            row = self.store.get(key)
            if row is not None and failed_attempts(row) > 0:
                yield replace(row, data={})

    aadd = async_twin(add)
    aadd_many = async_twin(add_many)
    alist = async_iterator_twin(list)  # noqa: A003 – a method may have this name
    alate = async_iterator_twin(late)
    ahistory = async_iterator_twin(history)
    aoutputs = async_iterator_twin(outputs)
    aaudit = async_iterator_twin(audit)
    aoverdue = async_twin(overdue)
    afailing = async_iterator_twin(failing)

    def submit_to(self, queue: TaskStore) -> None:
        """Make `queue` the target of `Task.finish_by_submitting`."""
        self._settlement.queue = queue


def _bounds(state: StateWord, now: float, late: float) -> builtins.list[dict[str, Any]]:
    """Return the fields of each `ScheduleFilter` that a list of this state needs.

    Together the filters find every schedule in this state through an index; they may also find others.
    `late`: the least number of seconds for which an overdue schedule has been due.
    """
    if state in (DUE, OVERDUE):
        return [{"due_until": now - late if state == OVERDUE else now}]
    if state in (WAITING, PAUSED, ENDED):
        return [{"due_from": {WAITING: now, PAUSED: NEVER, ENDED: NO_OCCURRENCE}[state]}]
    if state in (FAILING, RETRYING):  # an attempt whose lease has expired counts as failed
        return [{"failing": True}, {"held": True, "due_until": now}]
    return [{"held": state in (RUNNING, LEASED)}]


def _merged(lists: Iterable[Iterator[ScheduleRow]]) -> Iterator[ScheduleRow]:
    """Yield the schedules of several lists by due time and key, each only once."""
    seen = set[str]()
    for row in heapq.merge(*lists, key=attrgetter("next_run_time", "key")):
        if row.key not in seen:
            seen.add(row.key)
            yield row


def open_schedules(
    section: Section,
    holder: str,
    prefetch_time: float | None = None,
    connections: int = CONNECTIONS,
    database: Callable[[Any], Any] | None = None,
    read_only: bool = False,
    long_reads: bool = False,
) -> ScheduleCollection:
    """Return the collection that `section` configures. Opens no connection.

    `prefetch_time`: the seconds of the lease on prefetched runs (default: `alive_time`). `connections`, `database`,
    `read_only`, `long_reads`: the same as in `StoreSettings`.
    """
    problem = partial(rule_problem, dialect=section.cron_dialect)
    own = section.store_settings(holder, connections)
    settings = replace(own, schedules=section.table, problem=problem, database=database)
    settings = replace(settings, read_only=read_only, long_reads=long_reads)
    store = open_stores(section.type, settings).schedules
    if store is None:
        raise ConfigError(f"the store type {section.type!r} keeps no schedules")
    times = LeaseTimes(section.alive_time, section.retry_wait, prefetch_time)
    defaults = Defaults(**{field.name: getattr(section, field.name) for field in fields(Defaults)})
    return ScheduleCollection(store, times, defaults)

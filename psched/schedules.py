"""The collection of schedules, and a reference to one of them. Used in children and in clients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from psched import cron
from psched.advance import Advance
from psched.backends import open_stores
from psched.config import Section
from psched.errors import ConfigError, NotFoundError, ScheduleError
from psched.model import Rule, ScheduleRow
from psched.payload import check_key, encode
from psched.source import LeaseTimes, Source
from psched.store import ScheduleStore, StoreSettings, TaskStore
from psched.task import Task

_TRIES = 100
"""How often a compare-and-set is tried again when others keep changing the row."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """What schedules take from the configuration: the time zone of those that name none, and the cron dialect."""

    timezone: str = "UTC"
    dialect: str = "vixie"


class ScheduleCollection:
    """All schedules of one table. A context manager; safe to use from several threads, not across a fork."""

    def __init__(self, store: ScheduleStore, times: LeaseTimes, defaults: Defaults) -> None:
        self.store = store
        self._advance = Advance(store, defaults.dialect)
        self.source = Source(store, self._advance, times)
        self._defaults = defaults

    def __enter__(self) -> ScheduleCollection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getitem__(self, key: str) -> Schedule:
        """Return a reference to the schedule with this key, whether it exists or not."""
        return Schedule(self.store, check_key(key), self._defaults.dialect)

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
    ) -> Schedule:
        """Create a schedule and return a reference to it.

        Its first occurrence is the first match at or after `next_time` (default: the database's now), run `delay`
        seconds later, or at `next_run_time` when that is given. `timezone` defaults to the configured one.

        Raises:
            AlreadyExistsError: a schedule has this key.
            ConfigError: the cron expression or the time zone cannot be used.
            ValueError: the key or the data cannot be stored.
        """
        content = {} if data is None else dict(data)
        encode(content)
        rule = checked_rule(
            Rule(cron, self._defaults.timezone if timezone is None else timezone, delay), self._defaults.dialect
        )
        start = int(-(-self.store.now() // 1)) if next_time is None else next_time
        first = first_match(rule, start, self._defaults.dialect)
        due = first + rule.delay if next_run_time is None else next_run_time
        self.store.add(check_key(key), checked_type(type), rule, first, due, content)
        return self[key]

    def list(self) -> Iterator[ScheduleRow]:
        """Yield every schedule, ordered by due time."""
        return self.store.list()

    def poll(self, types: Collection[str] | None = None) -> Task | None:
        """Acquire the run that has been due longest, or None when nothing is due.

        It is ours for `alive_time` seconds; renew it with `heartbeat` when it takes longer. `types` limits what is
        taken (NotSupportedError on `rdb_compat`).
        """
        return self.source.poll(types)

    def poll_multi(self, max_acquire: int = 1, types: Collection[str] | None = None) -> Sequence[Task]:
        """Acquire up to `max_acquire` due runs, earliest first; see `poll`."""
        return self.source.poll_multi(max_acquire, types)

    def feed(self, queue: TaskStore) -> None:
        """Let runs finish by submitting to `queue` (`Task.finish_by_submitting`)."""
        self._advance.queue = queue

    def close(self) -> None:
        """Close every connection to the database; idempotent."""
        self.store.close()


class Schedule:
    """A reference to one schedule by its key; nothing is read until a method is called."""

    def __init__(self, store: ScheduleStore, key: str, dialect: str) -> None:
        self.key = key
        self._store = store
        self._dialect = dialect

    def __repr__(self) -> str:
        return f"<Schedule key={self.key!r}>"

    def exists(self) -> bool:
        """Whether there is such a schedule now."""
        return self._store.get(self.key) is not None

    def metadata(self) -> ScheduleRow:
        """Return the schedule as it is stored now. Raises NotFoundError."""
        row = self._store.get(self.key)
        if row is None:
            raise NotFoundError(f"no schedule has the key {self.key!r}")
        return row

    def delete(self) -> None:
        """Delete the schedule; a run in progress is preempted. Raises NotFoundError."""
        self._store.delete(self.key)

    def modify(
        self,
        *,
        type: str | None = None,
        cron: str | None = None,
        delay: float | None = None,
        timezone: str | None = None,
        data: Mapping[str, Any] | None = None,
        next_time: int | None = None,
        next_run_time: float | None = None,
    ) -> None:
        """Change what is given (None: leave as it is), at once.

        A new rule moves the next occurrence to its first match from now on, except that an occurrence that has come
        already is kept. While a run is leased or waits for a retry only the rule is written, and the run settles by it.

        Raises:
            NotFoundError: there is no such schedule.
            ConfigError, ValueError: a value cannot be used; nothing was changed.
            ScheduleError: `next_time` or `next_run_time` was given while a run is leased or waits for a retry.
        """

        def change(seen: ScheduleRow) -> ScheduleRow:
            rule = Rule(
                seen.rule.cron if cron is None else cron,
                seen.rule.timezone if timezone is None else timezone,
                seen.rule.delay if delay is None else delay,
            )
            wanted = replace(
                seen,
                type=seen.type if type is None else checked_type(type),
                data=seen.data if data is None else dict(data),
                rule=rule if rule == seen.rule else checked_rule(rule, self._dialect),
            )
            return self._timed(seen, wanted, next_time, next_run_time)

        if data is not None:
            encode(dict(data))
        self._compare_and_set(change)

    def _compare_and_set(self, change: Callable[[ScheduleRow], ScheduleRow]) -> None:
        for _ in range(_TRIES):
            seen = self.metadata()
            if self._store.modify(seen, change(seen)):
                return
        raise ScheduleError(f"{self.key!r}: it changes faster than it can be modified")

    def _timed(
        self, seen: ScheduleRow, wanted: ScheduleRow, next_time: int | None, next_run_time: float | None
    ) -> ScheduleRow:
        """Return `wanted` with the times that its rule, or the caller, gives it."""
        explicit = next_time is not None or next_run_time is not None
        if explicit and not seen.settled:
            raise ScheduleError(
                f"{self.key!r}: a run is in progress or waits for a retry; its times cannot be moved now"
            )
        if explicit:
            time = seen.next_time if next_time is None else first_match(wanted.rule, next_time, self._dialect)
            return replace(
                wanted,
                next_time=time,
                next_run_time=time + wanted.rule.delay if next_run_time is None else next_run_time,
            )
        if wanted.rule == seen.rule or not seen.settled:
            return wanted
        return moved(wanted, seen.rule, self._store.now(), self._dialect)


def moved(row: ScheduleRow, old: Rule, now: float, dialect: str) -> ScheduleRow:
    """Return `row`, which has a new rule, with the next occurrence that rule gives at `now` (unix seconds).

    An occurrence that is due stays as it is; one that has come but waits for its delay is kept and waits by the new
    delay; one still to come gives way to the first match of the new rule.
    """
    if row.next_run_time <= now:
        return row
    same_times = (row.rule.cron, row.rule.timezone) == (old.cron, old.timezone)
    if same_times or row.next_time <= now:
        return replace(row, next_run_time=row.next_time + row.rule.delay)
    time = first_match(row.rule, int(-(-now // 1)), dialect)
    return replace(row, next_time=time, next_run_time=time + row.rule.delay)


def first_match(rule: Rule, at: int, dialect: str) -> int:
    """Return the first occurrence of `rule` at or after `at`, in unix seconds."""
    return cron.first_time(rule.cron, at, rule.timezone, dialect)


def checked_rule(rule: Rule, dialect: str) -> Rule:
    """Return `rule`, or raise ConfigError for its cron or time zone, ValueError for its delay."""
    cron.validate(rule.cron, rule.timezone, dialect)
    check_delay(rule.delay)
    return rule


def check_delay(delay: object) -> None:
    """Raise ValueError unless `delay` is a number of seconds of at most some 300 years."""
    if isinstance(delay, bool) or not isinstance(delay, int | float) or not abs(delay) < 1e10:
        raise ValueError(f"delay must be a number of seconds, got {delay!r}")


def checked_type(type: object) -> str:
    """Return `type`, or raise ValueError: it must be non-empty text of at most 255 characters."""
    try:
        return check_key(type)
    except ValueError as error:
        raise ValueError(f"type is not usable: {str(error).replace('key', 'it', 1)}") from error


def open_schedules(section: Section, holder: str, prefetch_time: float | None = None) -> ScheduleCollection:
    """Return the collection that `section` configures; nothing is connected yet.

    `prefetch_time`: seconds a lease lasts on what a daemon took ahead (default: `alive_time`).
    """
    reckoning = f"{section.cron_dialect} {cron.tz_database()}"
    settings = StoreSettings(section.url, holder, schedules=section.table, tls=section.tls, reckoning=reckoning)
    store = open_stores(section.type, settings).schedules
    if store is None:
        raise ConfigError(f"the store type {section.type!r} keeps no schedules")
    times = LeaseTimes(
        section.alive_time, section.retry_wait, section.alive_time if prefetch_time is None else prefetch_time
    )
    return ScheduleCollection(store, times, Defaults(section.timezone, section.cron_dialect))

"""A reference to one schedule by its key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Unpack

from psched.async_methods import async_twin
from psched.cron import CronDialect
from psched.errors import NotFoundError, NotSupportedError, ScheduleError
from psched.model import Calendar, ScheduleRow
from psched.schedules.modification import Changes, Modification
from psched.schedules.pause_and_run_now import paused, resumed, run_now, with_regular
from psched.schedules.rule_change import with_calendars
from psched.schedules.settlement import with_rule_problem
from psched.schedules.validation import Terms, warn_of_step
from psched.store import ScheduleStore
from psched.store.ledger import MODIFY, PAUSE, RESUME, RUN_NOW, Entry

_TRIES = 100
"""The maximum number of tries to write a row while other processes change it."""


class Schedule:
    """A reference to one schedule by its key. Nothing is read until a method is called."""

    def __init__(self, store: ScheduleStore, key: str, dialect: CronDialect) -> None:
        self.key = key
        self._store = store
        self._dialect = dialect

    def __repr__(self) -> str:
        return f"<Schedule key={self.key!r}>"

    def exists(self) -> bool:
        """Return whether the schedule exists now."""
        return self._store.get(self.key) is not None

    def metadata(self) -> ScheduleRow:
        """Return the schedule's row as it is stored now. Raises NotFoundError."""
        row = self._store.get(self.key)
        if row is None:
            raise NotFoundError(f"no schedule has the key {self.key!r}")
        return with_rule_problem(row, self._dialect)

    def delete(self) -> None:
        """Delete the schedule and preempt a run in progress. Raises NotFoundError."""
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
        if_version: int | None = None,
        **terms: Unpack[Terms],
    ) -> None:
        """Change the given values in one write. None leaves a value as it is, except for the options below.

        The options (`terms`, see `ScheduleCollection.add`) are changed if they are given. For these, None means no
        limit or no text. With `if_version`, nothing is changed unless the schedule still has this version (see
        `metadata`).

        A new rule moves the next occurrence to its first match from now on. An occurrence whose time has come is kept.
        While a run is leased or waits for a retry, only the rule is written; the settlement of the run then uses the
        new rule. During an extra run, `next_time` and `next_run_time` are those of the regular occurrence that follows.

        Raises:
            NotFoundError: there is no such schedule.
            ConfigError, ValueError: a value is not valid; nothing was changed.
            NotSupportedError: the store keeps no policies, or no versions.
            ScheduleError: `next_time` or `next_run_time` was given while a run is leased or waits for a retry;
                `next_run_time` was given while the schedule is paused; the version of the schedule is not `if_version`;
                or the schedule is a backfill.
        """
        given: Changes = {
            "type": type,
            "cron": cron,
            "delay": delay,
            "timezone": timezone,
            "data": data,
            "next_time": next_time,
            "next_run_time": next_run_time,
            **terms,
        }
        modification = Modification(self.key, given, self._store, self._dialect)
        if if_version is not None and not self._store.keeps_policies:
            raise NotSupportedError(f"{self.key!r}: this store keeps no versions; use `type: rdb` or `type: redis`")

        self._refuse_for_backfill("modified")

        def change(seen: ScheduleRow) -> tuple[ScheduleRow, Entry | None]:
            if if_version not in (None, seen.version):
                raise ScheduleError(
                    f"{self.key!r}: not modified: expected version {if_version}, found {seen.version}, because "
                    "another client changed the schedule; read the schedule again"
                )
            return modification.applied_to(seen), None

        self._compare_and_set(MODIFY, change)
        if cron is not None:
            warn_of_step(cron, self._dialect)

    def follow(self, calendar: Calendar) -> None:
        """Replace the calendar of the same name in the schedule's rule by `calendar`.

        An occurrence whose time has come is kept. If the schedule no longer exists, nothing happens.
        """

        def change(seen: ScheduleRow) -> tuple[ScheduleRow, Entry | None]:
            exclude = tuple(calendar if each.name == calendar.name else each for each in seen.rule.exclude)
            rule = replace(seen.rule, exclude=exclude)
            row = with_calendars(seen.regular(), rule, self._store.now(), self._dialect)
            return (with_regular(replace(seen, rule=rule), row) if seen.is_extra else row), None

        with suppress(NotFoundError):
            self._compare_and_set(MODIFY, change)

    def pause(self) -> bool:
        """Let no occurrence be due until `resume`. A run in progress continues, but is not retried during the pause.

        A run that `run_now` requested waits, too. If the schedule was paused already, change nothing and return False.
        Raises NotFoundError and NotSupportedError. Raises ScheduleError if the next occurrence has waited through a
        hundred pauses.
        """
        self._refuse_without_ledger("pauses")
        seen = self._compare_and_set(PAUSE, lambda seen: (paused(seen, self._store.now(), self._dialect), None))
        return not seen.paused

    def resume(self) -> bool:
        """End the pause.

        Occurrences with a time in the pause are skipped; those that were due before the pause run now. If the schedule
        was not paused, change nothing and return False. Raises NotFoundError and NotSupportedError.
        """
        self._refuse_without_ledger("pauses")
        seen = self._compare_and_set(RESUME, lambda seen: resumed(seen, self._store.now(), self._dialect))
        return seen.paused

    def run_now(self) -> None:
        """Make the schedule due now, even if it is paused.

        If the time of the next occurrence has come, that occurrence runs now. Otherwise an extra run begins, whose
        `scheduled_time` is now. The regular occurrences do not change; if one is due during the extra run, it runs
        next. Raises NotFoundError and NotSupportedError. Raises ScheduleError while a run is in progress, and for a
        backfill.
        """
        self._refuse_without_ledger("extra runs")
        self._refuse_for_backfill("given an extra run")
        self._compare_and_set(RUN_NOW, lambda seen: (run_now(seen, self._store.now()), None))

    aexists = async_twin(exists)
    ametadata = async_twin(metadata)
    adelete = async_twin(delete)
    amodify = async_twin(modify)
    apause = async_twin(pause)
    aresume = async_twin(resume)
    arun_now = async_twin(run_now)
    afollow = async_twin(follow)

    def _refuse_without_ledger(self, what: str) -> None:
        if not self._store.keeps_policies:
            raise NotSupportedError(f"{self.key!r}: this store supports no {what}; use `type: rdb` or `type: redis`")

    def _refuse_for_backfill(self, what: str) -> None:
        if self._store.is_backfill(self.key):
            raise ScheduleError(f"{self.key!r} is a backfill, which cannot be {what}; cancel it, and start another one")

    def _compare_and_set(
        self, action: str, change: Callable[[ScheduleRow], tuple[ScheduleRow, Entry | None]]
    ) -> ScheduleRow:
        """Change the row. If another client changes it meanwhile, try again. Return the previous row."""
        for _ in range(_TRIES):
            seen = self.metadata()
            wanted, entry = change(seen)
            if self._store.modify(seen, wanted, action, entry):
                return seen
        raise ScheduleError(
            f"{self.key!r}: not modified: the schedule was changed during each of {_TRIES} tries; try again"
        )

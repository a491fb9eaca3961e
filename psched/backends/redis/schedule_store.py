"""`ScheduleStore` on Redis."""

from __future__ import annotations

import builtins
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

from psched.backends.common.batches import parts
from psched.backends.common.ended_leases import FINISHED, RELEASED
from psched.backends.common.rows import (
    all_columns,
    changed_columns,
    definition_columns,
    milliseconds,
    regular_time,
    settled_time,
    with_tag,
)
from psched.backends.redis.alert_store import NO_FAILURE, RedisOverdueAlerts, failure_arguments
from psched.backends.redis.calendars import RedisCalendars
from psched.backends.redis.client import Argument, RedisServer
from psched.backends.redis.counts import RedisScheduleCounts
from psched.backends.redis.lease_store import (
    CHARACTERS_AT_ONCE,
    Answer,
    RedisLeaseStore,
    SubmitOnAdvance,
    new_number,
    refused,
)
from psched.backends.redis.ledger import RedisLedger
from psched.backends.redis.rows import claimed_schedule, entry_arguments, read_stored_schedule, stored
from psched.backends.redis.table_setup import RedisTable
from psched.errors import IdempotentNotFoundError, ScheduleError
from psched.model import Lease, ScheduleFilter, ScheduleRow
from psched.payload import pack
from psched.store import RowChange, ScheduleStore, StoreSettings, UnreadRow, only
from psched.store.ledger import (
    ADD,
    DELETE,
    FAILED,
    MODIFY,
    NOW,
    Entry,
    Step,
    failures_after,
    previous_ended_after,
    runs_after,
)

_PAGE = 500
"""The maximum number of rows that one script reads."""
_AT_ONCE = 500
"""The maximum number of schedules that one script creates. Such a script blocks the server for about 50 ms."""
_RUNNING = "running"
_REDEFINE = "redefine"
_FIRST_PAUSE, _LONGEST_PAUSE = 1000, 60_000
"""Milliseconds for which workers acquire no schedules while `apply` computes times again: the first and the longest
pause."""


class RedisScheduleStore(RedisLeaseStore, ScheduleStore):
    _settling = ("advance_many",)

    def __init__(self, server: RedisServer, table: str, settings: StoreSettings) -> None:
        super().__init__(
            server,
            RedisTable(server, table, "schedules"),
            settings.holder,
            partial(claimed_schedule, settings.holder, settings.max_data_size),
        )
        self.max_data_size = settings.max_data_size
        self._reckoning = settings.reckoning
        self._keeps_failures = settings.keeps_failures
        self.ledger = RedisLedger(self._run)
        self.alerts = RedisOverdueAlerts(self._run)
        self.calendars = RedisCalendars(self._run)

    @property
    def reads(self) -> RedisScheduleCounts:
        return RedisScheduleCounts(self._run)

    def add_many(self, schedules: Sequence[ScheduleRow]) -> builtins.list[str]:
        words: builtins.list[builtins.list[Argument]] = []
        sizes = []
        for row in schedules:  # check all schedules before the first one is written
            text, size = pack(row.data, max_size=self.max_data_size)
            columns = {"data": text, "size": size, **all_columns(row)}
            fields = [word for column in columns.items() if column[1] is not None for word in column]
            words.append([row.key, len(fields), *fields])
            sizes.append(len(text))
        return [key for part in parts(words, sizes, _AT_ONCE, CHARACTERS_AT_ONCE) for key in self._add(part)]

    def _add(self, words: Sequence[Sequence[Argument]]) -> builtins.list[str]:
        arguments = [word for row in words for word in row]
        return [key.decode() for key in self._run("add", new_number(), self._holder, self._reckoning, *arguments)]

    def get(self, key: str) -> ScheduleRow | None:
        row = self._get(key)
        return None if row is None else self._read_row(row)

    def get_many(self, keys: Sequence[str]) -> builtins.list[ScheduleRow]:
        found = []
        for start in range(0, len(keys), _PAGE):
            rows = self._run("get_many", *keys[start : start + _PAGE])
            found += [self._read_row(stored(key, row)) for key, row in rows if row]
        return found

    def apply(self, changes: Sequence[RowChange]) -> builtins.list[str]:
        """Implements `ScheduleStore.apply`.

        `redefine` computes new times from the row that was read. So the script compares the times of this row with the
        stored times. If the row has run since it was read, the script writes nothing and returns the row. Workers then
        acquire no schedules for a moment, so that one of the next attempts succeeds.
        """
        number, pause = new_number(), _FIRST_PAUSE
        words: dict[str, str] = {}
        current = {change.key: change for change in changes}
        unread = [change.seen for change in changes if change.wanted and isinstance(change.seen, UnreadRow)]
        present = {row.key: row for row in self.get_many([each.key for each in unread])}
        if outdated := [key for key, version in unread if key not in present or present[key].version != version]:
            return outdated
        current |= {key: current[key]._replace(seen=row) for key, row in present.items()}
        keys: Collection[str] = current
        while keys:
            now = self.now()
            words |= {key: self._change_words(current[key], now) for key in keys}
            conflicts, have_run = self._apply(number, pause, words)
            if conflicts:
                return [key.decode() for key in conflicts]
            rows = [self._read_row(stored(key, row)) for key, row in have_run]
            keys = [row.key for row in rows]
            current |= {row.key: _seen_again(current[row.key], row) for row in rows}
            pause = min(2 * pause, _LONGEST_PAUSE)
        return []

    def _apply(self, number: int, pause: int, words: Mapping[str, str]) -> tuple[Sequence[Any], Sequence[Any]]:
        """Run the script `apply`, and return its answer.

        `number`: identifies the call. `pause`: for how many milliseconds workers acquire no schedules if a row has run.
        `words`: the changes by key.
        """

        def work(uncertain: bool) -> tuple[Sequence[Any], Sequence[Any]]:
            if uncertain and self._has_change_of(next(iter(words)), number):
                return (), ()
            conflicts, have_run = self._call("apply", number, self._holder, self._reckoning, pause, *words.values())
            return conflicts, have_run

        return self._server.run(work)

    def _change_words(self, change: RowChange, now: float) -> str:
        """Return a change in the form that schedule_changes.lua takes."""
        seen, wanted = change.seen, change.wanted
        action = ADD if seen is None else DELETE if wanted is None else MODIFY
        columns: dict[str, Any] = {}
        if isinstance(seen, ScheduleRow) and wanted is not None:
            if change.redefine is not None:
                action, wanted = _REDEFINE, change.redefine(seen, now)
            columns = changed_columns(seen, wanted, self.max_data_size)
        elif wanted is not None:
            text, size = pack(wanted.data, max_size=self.max_data_size)
            columns = {"data": text, "size": size, **all_columns(wanted)}
            columns = {name: value for name, value in columns.items() if value is not None}
        read: Sequence[Argument] = ("", "", "", "")
        if seen is not None:
            read = _as_seen(seen) if isinstance(seen, ScheduleRow) else (str(seen.version), "", "", "")
        fields = ["" if word is None else word for column in columns.items() for word in column]
        return json.dumps([action, change.key, *map(str, (*read, *fields))], ensure_ascii=False)

    def _has_change_of(self, key: str, number: int) -> bool:
        [changes] = self._call("changes", key)
        return any(json.loads(change).get("number") == number for change in changes)

    def _read_row(self, row: dict[str, Any]) -> ScheduleRow:
        return read_stored_schedule(row, self.max_data_size)

    def list(self, wanted: ScheduleFilter = ScheduleFilter()) -> Iterator[ScheduleRow]:  # noqa: B008 - frozen
        return with_tag(self._list(wanted), wanted.tag)

    def _list(self, wanted: ScheduleFilter) -> Iterator[ScheduleRow]:
        first, last = ("" if each is None else milliseconds(each) for each in (wanted.due_from, wanted.due_until))
        names = ["" if name is None else name for name in (wanted.type, wanted.prefix)]
        only = [*names, first, last, int(wanted.held), int(wanted.failing), wanted.owner or ""]
        after: Sequence[Argument] = ("", "")
        if wanted.after is not None:
            after = milliseconds(wanted.after[0]), wanted.after[1]
        while True:
            *after, page = self._run("list", min(wanted.page or _PAGE, _PAGE), *after, *only)
            yield from (self._read_row(stored(key, found)) for key, found in page if found)
            if not after[1]:
                return

    def long_due(self, age: float, limit: int) -> builtins.list[ScheduleRow]:
        return self._late("due:", age, limit)

    def failing(self, age: float, limit: int) -> builtins.list[ScheduleRow]:
        return self._late("failing", age, limit)

    def _late(self, kind: str, age: float, limit: int) -> builtins.list[ScheduleRow]:
        found = self._run("late", kind, milliseconds(age), limit)
        return [read_stored_schedule(stored(key, row) | {"data": "{}"}) for key, row in found]

    def modify(self, seen: ScheduleRow, wanted: ScheduleRow, action: str = MODIFY, entry: Entry | None = None) -> bool:
        changes = changed_columns(seen, wanted, self.max_data_size)
        if not changes:
            return True
        pending = regular_time(seen) if entry is None or entry.last is None else entry.last + 1
        passed = ["", ""] if entry is None else entry_arguments(seen, entry, self._reckoning)
        number = new_number()
        by = [self._holder, action, milliseconds(pending), self._reckoning, number]
        given = [seen.key, *_as_seen(seen), *by, *passed]
        fields = ["" if word is None else word for change in changes.items() for word in change]

        def work(uncertain: bool) -> bool:
            if self._call("modify", *given, *fields) == 1:
                return True
            return uncertain and self._is_made_by(seen.key, seen.version + 1, number)

        return self._server.run(work)

    def _is_made_by(self, key: str, version: int, number: int) -> bool:
        """Return whether the call with this number has made this version of the definition."""
        made = {"version": version, "number": number}
        [changes] = self._call("changes", key)
        return any(made.items() <= json.loads(change).items() for change in changes)

    def delete(self, key: str) -> None:
        seen, more = self._run("row_identity", key), (self._holder, self._reckoning)
        if seen is None or not self._server.run(lambda again: self._call("delete", key, seen[0], *more) == 1 or again):
            raise IdempotentNotFoundError(f"no schedule has the key {key!r}")

    def advance_many(self, steps: Sequence[Step], until: float) -> builtins.list[ScheduleRow | ScheduleError | None]:
        """Advance a few hundred schedules by one script. If any of them submits a task, use one script per schedule."""
        if any(step.on_commit for step in steps):
            return [self._advance_and_submit(step, until) for step in steps]
        answers = self._answers("advance_many", map(self._step, steps), until)
        return [self._advanced(step, *answer) for step, answer in zip(steps, answers, strict=True)]

    def _advance_and_submit(self, step: Step, until: float) -> ScheduleRow | ScheduleError | None:
        submission = SubmitOnAdvance(self._server)
        if step.on_commit is not None:
            step.on_commit(submission)
        if not submission.tables:
            return self.advance_many([step._replace(on_commit=None)], until)[0]
        words = [*self._step(step), *submission.arguments]
        ((answer, uncertain),) = self._answers("advance_and_submit", [words], until, tables=submission.tables)
        return self._advanced(step, answer, uncertain)

    def _advanced(self, step: Step, answer: Answer | None, uncertain: bool) -> ScheduleRow | ScheduleError | None:
        if answer is None:
            return None
        if answer[0] == b"changed":
            return self._read_row(stored(step.claim.row.key, answer[1]))
        return refused(step.claim.lease, answer, uncertain, FINISHED)

    def park(self, lease: Lease, due: float, until: float) -> None:
        only(self._settle_many("release", RELEASED, [lease], until, common=[milliseconds(due), 1]))

    def _step(self, step: Step) -> builtins.list[Argument]:
        """Return the arguments of `advance_row` in schedule_runs.lua."""
        row, entry = cast("ScheduleRow", step.claim.row), step.entry
        settled, counted, in_row = settled_time(row, entry), runs_after(row, entry), failures_after(row, entry)
        ended = previous_ended_after(row, entry)
        failed = entry.outcome == FAILED and self._keeps_failures
        return [
            *self._lease_arguments(step.claim.lease),
            *definition_columns(row).values(),
            milliseconds(step.next_time),
            milliseconds(step.next_run_time),
            "" if settled is None else settled,
            "" if counted is None else counted,
            "" if in_row is None else in_row,
            "" if ended is None else ended if ended == NOW else milliseconds(ended),
            milliseconds(row.next_time),
            "" if entry.started is None else milliseconds(entry.started),
            *entry_arguments(row, entry, self._reckoning),
            *(failure_arguments(step.claim, row.last_error, self._holder) if failed else NO_FAILURE),
        ]


def _seen_again(change: RowChange, row: ScheduleRow) -> RowChange:
    """Return `change` for `row`, which was read again after a run.

    Raises ScheduleError if the times of the row are unchanged.
    """
    if isinstance(change.seen, ScheduleRow) and _as_seen(row) == _as_seen(change.seen):
        problem = row.problem or "its times are not whole seconds"
        raise ScheduleError(f"{row.key!r} cannot be changed: {problem}; repair or delete this schedule")
    return change._replace(seen=row)


def _as_seen(seen: ScheduleRow) -> list[Argument]:
    """Return what the scripts compare with the stored row: the version, status and times of `seen`.

    The due time of a running row is left out, because each renewal of the lease changes it.
    """
    due: Argument = "" if seen.status == _RUNNING else milliseconds(seen.next_run_time)
    return [seen.version, seen.status, milliseconds(seen.next_time), due]

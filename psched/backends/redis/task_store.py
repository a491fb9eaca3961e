"""`TaskStore` on Redis."""

from __future__ import annotations

import builtins
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

from psched.backends.common.batches import parts, retired_together
from psched.backends.common.rows import TASK_FAILED, WAITING, read_outcome, read_task, storable
from psched.backends.redis.alert_store import NO_FAILURE, failure_arguments
from psched.backends.redis.client import Argument, RedisServer
from psched.backends.redis.counts import RedisTaskCounts
from psched.backends.redis.lease_store import CHARACTERS_AT_ONCE, RedisLeaseStore, SubmitOnAdvance, new_number
from psched.backends.redis.rows import claimed_task, stored
from psched.backends.redis.table_setup import RedisTable
from psched.error_messages import shown
from psched.errors import (
    AlreadyFinishedError,
    IdempotentNotFoundError,
    NotFoundError,
    NotSupportedError,
    ScheduleError,
)
from psched.model import Claim, NewTask, RunResult, TaskFilter, TaskOutcome, TaskRow, TaskStatus
from psched.payload import encode_headers, pack
from psched.store import NO_TRANSACTION, StoreSettings, TaskStore, only
from psched.store.outbox import task_ended
from psched.store.task_store import check_wanted, not_wanted

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_PAGE = 500
"""The maximum number of rows that one script examines."""
_AT_ONCE = 5000
"""The maximum number of tasks that one script submits. Such a script blocks the server for about 50 ms."""
_OUTCOME = ("status", "type", "last_error", "result")
"""The fields that the script `outcomes` returns."""
_PRIORITIES = range(-100, 101)
"""The allowed priorities: those that fit into a score of line_score() in queue.lua."""


class RedisTaskStore(RedisLeaseStore, TaskStore):
    _settling = ("retire_many",)

    def __init__(self, server: RedisServer, table: str, settings: StoreSettings) -> None:
        holder = settings.holder
        self._keeps_failures = settings.keeps_failures
        self._keeps_endings = settings.keeps_endings
        self.max_data_size = settings.max_data_size
        claimed = partial(claimed_task, holder, settings.max_data_size)
        super().__init__(server, RedisTable(server, table, "queue"), holder, claimed)

    @property
    def reads(self) -> RedisTaskCounts:
        return RedisTaskCounts(self._run)

    def submit(self, tasks: Sequence[NewTask], connection: Any = None) -> builtins.list[str]:
        """Create tasks, up to a few thousand by one script. Return the keys that existed before.

        If `connection` belongs to the advance of a schedule, the script that advances the schedule creates the tasks
        later, and no keys are returned.
        """
        rows = [_row(task, self.max_data_size) for task in tasks]  # check all tasks before the first one is written
        if connection is None:
            sizes = [len(data) for _, _, data, *_ in rows]
            return [key for part in parts(rows, sizes, _AT_ONCE, CHARACTERS_AT_ONCE) for key in self._submit(part)]
        if not isinstance(connection, SubmitOnAdvance) or self._server.location != connection.server.location:
            raise NotSupportedError(NO_TRANSACTION)
        connection.submit(self._table.meta, [new_number(), _columns(rows)])
        return []

    def _submit(self, rows: Sequence[Sequence[str]]) -> builtins.list[str]:
        present = self._run("submit", new_number(), _columns(rows), "many" if len(rows) > 1 else "one")
        return [key.decode() for key in present]

    def get(self, key: str) -> TaskRow | None:
        row = self._get(key)
        return None if row is None else read_task(row, self.max_data_size)

    def list(self, wanted: TaskFilter) -> Iterator[TaskRow]:
        status = wanted.status if wanted.late is None else WAITING
        given = (status, wanted.type, wanted.user, wanted.prefix, _milliseconds(wanted.late))
        asked = ["" if value is None else value for value in given]
        last = wanted.after or ""
        while True:
            end, page = self._run("list", min(wanted.page or _PAGE, _PAGE), last, *asked)
            last = end.decode()
            yield from (read_task(stored(key, found), self.max_data_size) for key, found in page)
            if not last:
                return

    def retire_many(
        self,
        claims: Sequence[Claim],
        status: TaskStatus,
        retention: float | None,
        until: float,
        error: str | None = None,
    ) -> builtins.list[ScheduleError | None]:
        """Retire the tasks together. Retire them one by one if they failed or there is an `error`.

        A failed task has its own attempts and its own failure.
        """
        common = [status, _milliseconds(retention), "", "", *NO_FAILURE]
        answers: builtins.list[ScheduleError | None] = []
        if status != TASK_FAILED and error is None:
            for part in retired_together(claims):
                answers += self._retire(part, status, common, error, until)
            return answers
        for claim in claims:
            common[2:4] = claim.row.attempts, storable(error) or ""
            if status == TASK_FAILED and self._keeps_failures:
                common[4:] = failure_arguments(claim, error, self._holder)
            answers += self._retire([claim], status, common, error, until)
        return answers

    def _retire(
        self, claims: Sequence[Claim], status: TaskStatus, common: Sequence[Argument], error: str | None, until: float
    ) -> builtins.list[ScheduleError | None]:
        """Retire claims by one script. Sends only the leases if no claim has a result and no events are kept."""
        leases = [claim.lease for claim in claims]
        if not self._keeps_endings and all(claim.result is None for claim in claims):
            return self._settle_many("retire_many", status, leases, until, common=[*common, 2])
        left = [claim.result or RunResult() for claim in claims]
        rows: builtins.list[Sequence[Argument]] = [
            (*self._lease_arguments(lease), each.result or "", each.progress or "")
            for lease, each in zip(leases, left, strict=True)
        ]
        if self._keeps_endings:
            rows = [(*row, self._ending(claim, status, error)) for row, claim in zip(rows, claims, strict=True)]
        return self._settle_many("retire_many", status, leases, until, rows, [*common, 4 + self._keeps_endings])

    def _ending(self, claim: Claim, status: TaskStatus, error: str | None) -> str:
        row = cast("TaskRow", claim.row)
        return json.dumps(task_ended(row, status, error, self._holder, claim.lease.fence))

    def _ending_of(self, key: str, status: TaskStatus) -> str:
        """Return the event of a task that ends without a run; '' if no events are kept."""
        row = self.get(key) if self._keeps_endings else None
        return "" if row is None else json.dumps(task_ended(row, status, None, self._holder, None))

    def update_data(self, claim: Claim, data: Mapping[str, Any], until: float) -> None:
        is_compressed = cast("TaskRow", claim.row).compression is not None
        text, size = pack(dict(data), is_compressed, self.max_data_size)
        only(self._settle_many("update_data", None, [claim.lease], until, common=[text, size]))

    def update_progress(self, claim: Claim, progress: str, until: float) -> None:
        only(self._settle_many("update_progress", None, [claim.lease], until, common=[progress]))

    def outcomes(self, keys: Sequence[str]) -> Mapping[str, TaskOutcome]:
        found = self._run("outcomes", *keys)
        texts = [[None if value is None else value.decode(errors="replace") for value in values] for values in found]
        rows = {key: dict(zip(_OUTCOME, values, strict=True)) for key, values in zip(keys, texts, strict=True)}
        return {key: read_outcome(row) for key, row in rows.items() if row["status"] is not None}

    def cancel_request(self, key: str, retention: float, wanted: TaskFilter | None = None) -> None:
        ending = self._ending_of(key, "cancelled")
        arguments = [_milliseconds(retention), ending, _status(wanted)]
        self._act("cancel_request", key, arguments, b"cancelled", wanted)

    def force_finish(self, key: str, retention: float) -> None:
        ending = self._ending_of(key, "finished")
        self._act("force_finish", key, [_milliseconds(retention), ending], b"finished")

    def preempt(self, key: str, alive_time: float) -> Claim:
        found = self._act("preempt", key, [math.ceil(alive_time * 1000), self._holder, new_number()])
        return self._claimed(key.encode(), found[1])

    def retry_failed(self, key: str, wanted: TaskFilter | None = None) -> None:
        self._act("retry_failed", key, [_status(wanted)], wanted=wanted)

    def delete(self, key: str, wanted: TaskFilter | None = None) -> None:
        seen = self._seen(key, wanted)
        found: int | None = None
        if seen is not None:
            nonce = seen[0]

            def work(uncertain: bool) -> int | None:
                answer: int | None = self._call("delete", key, nonce, _status(wanted))
                return 1 if answer is None and uncertain else answer

            found = self._server.run(work)
        if found is None:
            raise IdempotentNotFoundError(f"no task has the key {key!r}")
        if not found:
            raise not_wanted(key)

    def purge(self, limit: int) -> int:
        return int(self._run("purge", limit))

    def _drop_unreadable(self, unreadable: Sequence[Sequence[Any]]) -> None:
        """Log the keys that have no valid row, and remove them from the running tasks of every user.

        The users of unreadable tasks are unknown.
        """
        super()._drop_unreadable(unreadable)
        keys = [found[0] for found in unreadable if len(found) > 2]
        if keys:
            runs = f"{self._table.prefix}run:"

            def names(uncertain: bool) -> builtins.list[bytes]:
                return builtins.list(self._server.node(self._table.meta).scan_iter(f"{runs}*", count=1000))

            for name in self._server.run(names):
                self._run("remove_lost_runs", name.removeprefix(runs.encode()), *keys)
            self._run("remove_lost_runs", "", *keys)

    def _seen(self, key: str, wanted: TaskFilter | None) -> Sequence[bytes] | None:
        """Return the creation number and the fence of a row, or None.

        Raises ScheduleError for a wrong type or user.
        """
        seen: Sequence[bytes] | None = self._run("row_identity", key)
        if seen is not None and wanted is not None and (row := self.get(key)) is not None:
            check_wanted(row, wanted, status_too=False)
        return seen

    def _act(
        self,
        verb: str,
        key: str,
        arguments: Sequence[Argument],
        after: bytes | None = None,
        wanted: TaskFilter | None = None,
    ) -> Sequence[Any]:
        """Run a script on the row that has `key` now, but not on a later row with this key. Return its answer.

        `after`: if the answer was lost, a row with this status shows that the script was executed. `wanted`: see
        `TaskStore.cancel_request`. Raises NotFoundError, AlreadyFinishedError or ScheduleError.
        """
        seen = self._seen(key, wanted)

        def work(uncertain: bool) -> tuple[bool, Sequence[Any]]:
            if seen is None:
                return False, [None]
            nonce, fence = seen
            before = [fence if uncertain else ""] if verb == "retry_failed" else []
            answer = self._call(verb, key, nonce, *before, *arguments)
            return answer[0] == b"done" or (uncertain and after is not None and answer[0] == after), answer

        done, answer = self._server.run(work)
        if not done:
            raise _refusal(key, answer[0]) if wanted is None or answer[0] is None else not_wanted(key)
        return answer


def _columns(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as JSON columns for the script `submit`. A column of equal values is one value.

    The server parses these columns in a tenth of the time that one argument per value would take.
    """
    keys, *rest = zip(*rows, strict=True)
    return _ENCODER.encode([keys, *(column if column.count(column[0]) < len(column) else column[0] for column in rest)])


def _row(task: NewTask, max_data_size: int) -> tuple[str, ...]:
    """Return the values of a task for `read_columns` in submit.lua. Raises ValueError."""
    if task.priority not in _PRIORITIES:
        raise ValueError(f"priority must be a whole number from -100 to 100, got {shown(task.priority)}")
    text, size = pack(dict(task.data), task.compression is not None, max_data_size)
    return (
        task.key,
        task.type,
        text,
        "" if task.run_at is None else str(round(task.run_at * 1000)),
        "" if task.user is None else task.user,
        "" if task.max_running is None else str(task.max_running),
        str(task.priority),
        "" if task.max_attempts is None else str(task.max_attempts),
        str(size),
        encode_headers(task.headers) or "",
    )


def _status(wanted: TaskFilter | None) -> str:
    return "" if wanted is None or wanted.status is None else wanted.status


def _milliseconds(retention: float | None) -> Argument:
    return "" if retention is None else math.ceil(retention * 1000)


def _refusal(key: str, status: bytes | None) -> ScheduleError:
    if status is None:
        return NotFoundError(f"no task has the key {key!r}")
    word = status.decode(errors="replace")
    if word in ("waiting", "running"):
        return ScheduleError(f"{key!r} is {word}; only a failed or cancelled task can be tried again")
    return AlreadyFinishedError(f"{key!r} is {word} already")

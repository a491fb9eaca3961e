"""The queue of tasks that run once, and a reference to one task."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from psched.acquisition.table_base import TableBase
from psched.acquisition.task_source import TaskSource
from psched.async_methods import async_iterator_twin, async_twin, run_in_thread, signed_as_twin_of
from psched.backends import open_stores
from psched.clock import boottime
from psched.config import Section
from psched.error_messages import InvalidValueError, shown
from psched.errors import (
    AlreadyExistsError,
    ConfigError,
    NoResultError,
    NotFoundError,
    NotSupportedError,
    ResultTimeoutError,
    TaskCancelledError,
    TaskFailedError,
)
from psched.keys import check_key
from psched.model import (
    TASK_STATUSES,
    Compression,
    LeaseTimes,
    NewTask,
    Progress,
    TaskFilter,
    TaskOutcome,
    TaskRow,
    TaskStatus,
)
from psched.payload import decode_value, encode, encode_headers, object_of
from psched.queue.result_poller import ONGOING, ResultPoller
from psched.queue.settlement import TaskSettlement
from psched.retry_wait import check_attempts, check_wait
from psched.schedules.validation import check_distinct, check_times
from psched.store import CONNECTIONS, NO_RESULTS, TaskStore
from psched.stored_error_summary import error_summary
from psched.submit_telemetry import SubmitCall
from psched.task import Task

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    from psched.queue.async_submit_combiner import AsyncSubmitCombiner

    R_co = TypeVarWithDefault("R_co", default=Any, covariant=True)
else:
    R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")

PRIORITIES = range(-100, 101)
"""The allowed priorities. Each priority in use costs every poll one more look-up."""


class Queue(TableBase):
    """All tasks of one table. Usable as a context manager. Safe to use from several threads, but not across a fork."""

    store: TaskStore

    def __init__(
        self,
        store: TaskStore,
        times: LeaseTimes,
        retention: float = 300,
        max_attempts: int | None = None,
        failed_retention: float | None = None,
        stats_retention: float = 30 * 86400.0,
    ) -> None:
        """`retention`, `failed_retention`, `stats_retention`: see `TaskSettlement`."""
        settlement = TaskSettlement(store, retention, max_attempts, failed_retention, stats_retention)
        super().__init__(store, settlement, times)
        self._retention = settlement.retention
        self._submit_combiners: dict[Any, AsyncSubmitCombiner] = {}
        self._results = ResultPoller(store.outcomes)

    def __getitem__(self, key: str) -> QueuedTask:
        """Return a reference to a task. The task need not exist."""
        return QueuedTask(self.store, self.source, check_key(key), self._retention, self._results)

    def close(self) -> None:
        """Close every connection to the database. May be called repeatedly.

        Callers that wait for a result get a ScheduleError. A later call of any method connects again.
        """
        self._results.close()
        super().close()

    def submit(
        self,
        key: str,
        type: str,
        data: Mapping[str, Any] | None = None,
        *,
        run_at: float | None = None,
        user: str | None = None,
        max_running: int | None = None,
        priority: int = 0,
        max_attempts: int | None = None,
        compression: Compression | None = None,
        headers: Mapping[str, Any] | None = None,
        connection: Any = None,
    ) -> QueuedTask:
        """Create a task and return a reference to it. As the key is unique, the call may be repeated until it succeeds.

        - `run_at`: when the task runs, in unix seconds; default: now.
        - `user`, `max_running`: at most `max_running` tasks of one `user` run at a time.
        - `priority`: -100 to 100. Of one user's tasks, those with a higher priority run first.
        - `max_attempts`: the task fails for good if this many attempts fail. Default: the limit of its type, else the
          configured limit. Without any limit, psched retries the task for ever.
        - `compression`: "gzip" stores the data compressed.
        - `headers`: a JSON object with information about the task, such as a trace id; at most 4,096 bytes. The handler
          sees it as `task.headers`.
        - `connection`: a connection to the queue's database; the task is written in its transaction. It may belong to
          SQLAlchemy (Connection or Session), Django, psycopg, PyMySQL, mysqlclient or sqlite3. For `asubmit` it is an
          AsyncSession, an AsyncConnection, or a connection of asyncpg or psycopg. The caller commits or rolls back. The
          transaction stays usable even after AlreadyExistsError. With autocommit, no commit is needed.

        Raises:
            AlreadyExistsError: a task has this key. It may be a finished task, whose key is kept for `retention_time`.
            ValueError: the key, the data or a number cannot be stored; nothing was written.
            NotSupportedError: this store does not support one of the options, or `connection` is of an unknown kind, or
            leads to another database or table.
        """
        content = {} if data is None else data
        about = {} if headers is None else headers
        task = NewTask(key, type, content, run_at, user, max_running, priority, max_attempts, compression, about)
        return self._submitted(key, existed=bool(self.submit_many([task], connection)))

    def submit_many(self, tasks: Iterable[NewTask], connection: Any = None) -> list[str]:
        """Create many tasks. Return the keys that existed before; the tasks with these keys are not changed.

        All tasks are written in one transaction. With `connection` it is the caller's transaction, as for `submit`. On
        Redis a transaction writes at most 5,000 tasks or 4 MB of data, so a call with more may fail halfway; then
        repeat the call. Raises ValueError and NotSupportedError before anything is written.
        """
        checked = _storable_tasks(tasks)
        if not checked:
            return []
        with SubmitCall(checked, self.store.keeps_headers) as call:
            call.existing = existing = self.store.submit(call.tasks, connection)
        return existing

    @signed_as_twin_of(submit)
    async def asubmit(
        self, key: str, type: str, data: Mapping[str, Any] | None = None, *, connection: Any = None, **options: Any
    ) -> QueuedTask:
        """Create a task like `submit`, without blocking the event loop.

        Calls that one event loop makes at the same time are combined into one transaction. Each call gets its own
        result or error. If a caller is cancelled, the task may exist or not. To be sure, submit it again.
        """
        given = {name: value for name, value in options.items() if value is not None}
        task = storable_task(NewTask(key, type, {} if data is None else data, **given))
        with SubmitCall([task], self.store.keeps_headers) as call:
            if connection is None:
                existed = await self._submit_combiner().submit(call.tasks[0])
            else:
                existed = bool(await self.store.submit_async(call.tasks, connection))
            call.existing = [task.key] if existed else ()
        return self._submitted(task.key, existed)

    @signed_as_twin_of(submit_many)
    async def asubmit_many(self, tasks: Iterable[NewTask], connection: Any = None) -> builtins.list[str]:
        """Create tasks like `submit_many`, without blocking the event loop. `connection` is as for `asubmit`."""
        if connection is None:
            return await run_in_thread(self.submit_many, tasks)
        checked = _storable_tasks(tasks)
        if not checked:
            return []
        with SubmitCall(checked, self.store.keeps_headers) as call:
            call.existing = existing = await self.store.submit_async(call.tasks, connection)
        return existing

    def submit_sql(self, task: NewTask, paramstyle: str | None = None) -> tuple[str, Any]:
        """Return an INSERT statement for `task`, and its parameters, for a connection that `submit` does not support.

        Execute the statement once; another task needs another statement. The row count is 1, or 0 if a task has this
        key. On MariaDB and MySQL the statement fails with error 1062 instead of returning 0. In both cases the
        transaction stays usable.

        `paramstyle`: `pyformat`, `format`, `qmark`, `named` or `numeric` as in PEP 249, or `numeric_dollar`. The
        default is the style of psched's own driver. The parameters are a dict for the named styles, else a tuple.
        Raises ValueError, and NotSupportedError on Redis.
        """
        with SubmitCall([storable_task(task)], self.store.keeps_headers) as call:
            return self.store.submit_sql(call.tasks[0], paramstyle)

    def _submitted(self, key: str, existed: bool) -> QueuedTask:
        if existed:
            raise AlreadyExistsError(
                f"a task has the key {key!r} already (a finished task keeps its key for its retention_time)"
            )
        return self[key]

    def _submit_combiner(self) -> AsyncSubmitCombiner:
        """Return the combiner of the running event loop."""
        from asyncio import get_running_loop  # noqa: PLC0415 – programs without asyncio save the time of this import

        from psched.queue.async_submit_combiner import AsyncSubmitCombiner  # noqa: PLC0415 – it imports asyncio

        loop = get_running_loop()
        combiner = self._submit_combiners.get(loop)
        if combiner is None:
            forget = partial(self._submit_combiners.pop, loop, None)
            combiner = self._submit_combiners[loop] = AsyncSubmitCombiner(self.store, forget)
        return combiner

    def list(
        self,
        status: TaskStatus | None = None,
        type: str | None = None,
        user: str | None = None,
        *,
        prefix: str | None = None,
        late: float | None = None,
        after: str | None = None,
    ) -> Iterator[TaskRow]:
        """Yield the tasks that match the given arguments, ordered by key.

        - `status`: waiting, running, finished, failed or cancelled.
        - `prefix`: the beginning of the keys.
        - `late`: only waiting tasks that have been due for at least this many seconds.
        - `after`: the key of the last task of the previous page.

        Raises ValueError for another status, for `late` with a status other than waiting, and for other wrong values.
        """
        if status is not None and status not in TASK_STATUSES:
            raise InvalidValueError(f"status must be one of {', '.join(TASK_STATUSES)}, got {shown(status)}")
        for name, text in (("type", type), ("user", user), ("prefix", prefix), ("after", after)):
            if text is not None:
                check_key(text, name)
        if late is not None:
            check_wait("late", late)
            if status not in (None, "waiting"):
                raise InvalidValueError(f"late= selects waiting tasks, not {status} tasks; leave out late= or status=")
        return self.store.list(TaskFilter(status, type, user, prefix, late, after))

    alist = async_iterator_twin(list)  # noqa: A003 – a method may have this name


_TO_STORE = "annotate what its function returns, or use @app.task(store_result=True)"


class ResultType(Protocol[R_co]):
    """A function whose tasks may have results: `TaskFunction`."""

    @property
    def stores_result(self) -> bool:
        """Whether the result is stored."""

    def restored_result(self, stored: Any) -> R_co:
        """Return the result of the function, converted from the stored JSON value. Raises ValueError."""


class QueuedTask(Generic[R_co]):
    """A reference to one task by its key. Nothing is read until a method is called. `R_co`: the type of the result."""

    def __init__(
        self,
        store: TaskStore,
        source: TaskSource,
        key: str,
        retention: float,
        results: ResultPoller,
        result_type: ResultType[R_co] | None = None,
    ) -> None:
        """`result_type`: the function that the task calls; None if it is not known."""
        self.key = key
        self._store = store
        self._source = source
        self._retention = retention
        self._results = results
        self._result_type = result_type

    def __repr__(self) -> str:
        return f"<QueuedTask key={self.key!r}>"

    def of_type(self, result_type: ResultType[R]) -> QueuedTask[R]:
        """Return a reference to the same task, with a `result` of this type."""
        return QueuedTask(self._store, self._source, self.key, self._retention, self._results, result_type)

    def exists(self) -> bool:
        """Return whether the task exists now. A task that has ended exists until its retention is over."""
        return self._store.get(self.key) is not None

    def metadata(self) -> TaskRow:
        """Return the task's row as it is stored now. Raises NotFoundError."""
        row = self._store.get(self.key)
        if row is None:
            raise NotFoundError(f"no task has the key {self.key!r}")
        return row

    def status(self) -> TaskStatus:
        """Return the task's status: waiting, running, finished, failed or cancelled. Raises NotFoundError."""
        if not self._store.keeps_results:
            return self.metadata().status
        outcome = self._store.outcomes([self.key]).get(self.key)
        if outcome is None:
            raise NotFoundError(self._is_missing())
        return outcome.status

    def progress(self) -> Progress | None:
        """Return the last report that the run made with `task.progress`, or None. Raises NotFoundError."""
        return self.metadata().progress

    def result(self, timeout: float | None = None) -> R_co:
        """Wait until the task has ended, and return its result.

        Wait at most `timeout` seconds. None waits without end, 0 queries once. One query asks for up to 500 of the
        tasks for which callers of this `Queue` wait. The second query follows after 0.05 s; then the pauses grow, up to
        one second.

        Raises:
            ResultTimeoutError: the task has not ended in time. It continues.
            TaskFailedError: the task has failed for good. The exception has the `error` stored with the task.
            TaskCancelledError: the task was cancelled.
            NoResultError: the task is finished but has no result, because its type stores none.
            NotFoundError: there is no such task. It may have been deleted after its `retention_time`.
            NotSupportedError: the store keeps no results (`rdb_compat`).
        """
        answer = self._awaited(timeout)
        try:
            return self._returned(answer.result())
        finally:
            answer.cancel()

    async def aresult(self, timeout: float | None = None) -> R_co:  # noqa: ASYNC109 – as `result`
        """Return what `result` returns, without blocking the event loop or using a thread of its executor."""
        import asyncio  # noqa: PLC0415 – programs without asyncio save the time of this import

        return self._returned(await asyncio.wrap_future(self._awaited(timeout)))

    def _awaited(self, timeout: float | None) -> Future[TaskOutcome | None]:
        if timeout is not None:
            check_wait("timeout", timeout)
        if not self._store.keeps_results:
            raise NotSupportedError(f"{self.key!r}: {NO_RESULTS}")
        if self._result_type is not None and not self._result_type.stores_result:
            raise NoResultError(f"{self.key!r}: its type stores no result; {_TO_STORE}")
        return self._results.wait_for(self.key, timeout)

    def _returned(self, outcome: TaskOutcome | None) -> R_co:
        """Return the result, or raise the error that says why there is no result."""
        if outcome is None:
            raise NotFoundError(self._is_missing())
        if outcome.status in ONGOING:
            raise ResultTimeoutError(
                f"{self.key!r} has not ended within `timeout`; it is {outcome.status}, and is not cancelled"
            )
        if outcome.status == "failed":
            raise TaskFailedError(f"{self.key!r} has failed: {error_summary(outcome.error or '')}", outcome.error)
        if outcome.status == "cancelled":
            raise TaskCancelledError(f"{self.key!r} was cancelled")
        if outcome.result is None:
            raise NoResultError(
                f"{self.key!r} is finished and has no result: the type {outcome.type!r} stores no result; {_TO_STORE}"
            )
        value = decode_value(outcome.result)
        return value if self._result_type is None else self._result_type.restored_result(value)

    def _is_missing(self) -> str:
        return (
            f"no task has the key {self.key!r}: it was never submitted, or was deleted, as finished tasks are when "
            "their retention_time is over"
        )

    def cancel_request(self) -> None:
        """Cancel a waiting task immediately. Ask a running handler to stop at its next heartbeat.

        If the handler finishes nevertheless, the task is finished. On `rdb_compat` a waiting task is retired when a
        worker of psched acquires it. Raises NotFoundError and AlreadyFinishedError.
        """
        self._store.cancel_request(self.key, self._retention)

    def force_finish(self) -> None:
        """Retire the task as finished and preempt its run, if any. Raises NotFoundError and AlreadyFinishedError."""
        self._store.force_finish(self.key, self._retention)

    def preempt(self) -> Task:
        """Acquire the task, even if it is not due, and regardless of `max_running`.

        A run on another worker is preempted. The lease lasts `alive_time`. Raises NotFoundError and
        AlreadyFinishedError.
        """
        asked = boottime()
        return self._source.adopt(self._store.preempt(self.key, self._source.times.alive_time), asked)

    def retry(self) -> None:
        """Make a failed or cancelled task due now, and set its attempts to 0.

        Raises NotFoundError. Raises AlreadyFinishedError if the task is finished, and ScheduleError if it is waiting or
        running. On `rdb_compat` no task fails for good, so there it raises NotSupportedError.
        """
        self._store.retry_failed(self.key)

    def delete(self) -> None:
        """Delete the task, even if it has ended. Preempt a run in progress. Raises NotFoundError."""
        self._store.delete(self.key)

    aexists = async_twin(exists)
    astatus = async_twin(status)
    aprogress = async_twin(progress)
    ametadata = async_twin(metadata)
    acancel_request = async_twin(cancel_request)
    aforce_finish = async_twin(force_finish)
    aretry = async_twin(retry)
    adelete = async_twin(delete)


def _storable_tasks(tasks: Iterable[NewTask]) -> list[NewTask]:
    given: object = tasks
    if not isinstance(given, Iterable):
        raise InvalidValueError(f"submit_many takes a list of psched.NewTask, got {shown(given)}")
    checked = [storable_task(task) for task in tasks]
    check_distinct([task.key for task in checked], "task")
    return checked


def checked_task(task: NewTask) -> NewTask:
    """Return `task`. Raises ValueError for a field that cannot be stored."""
    encode(object_of(task.data))
    encode_headers(task.headers)
    return storable_task(task)


def storable_task(task: NewTask) -> NewTask:
    """Return `task` after a check of all fields except data and headers. Raises ValueError.

    The store checks data and headers.
    """
    if not isinstance(task, NewTask):
        raise InvalidValueError(f"each task must be a psched.NewTask, got {shown(task)}")
    check_key(task.key)
    check_key(task.type, "type")
    object_of(task.data)
    check_times(run_at=task.run_at)
    if task.user is not None:
        check_key(task.user, "user")
    elif task.max_running is not None:
        raise InvalidValueError(
            f"max_running {shown(task.max_running)} needs a user, whose running tasks it limits; give user= or -u"
        )
    if task.max_running is not None:
        check_attempts("max_running", task.max_running)
    if task.max_attempts is not None:
        check_attempts("max_attempts", task.max_attempts)
    check_priority("priority", task.priority)
    if task.compression not in (None, "gzip"):
        raise InvalidValueError(f"compression must be 'gzip' or None, got {shown(task.compression)}")
    return task


def check_priority(name: str, priority: object) -> None:
    """Raise ValueError if `priority` is not a whole number from -100 to 100."""
    if not isinstance(priority, int) or isinstance(priority, bool) or priority not in PRIORITIES:
        raise InvalidValueError(f"{name} must be a whole number from -100 to 100, got {shown(priority)}")


def open_queue(
    section: Section,
    holder: str,
    prefetch_time: float | None = None,
    connections: int = CONNECTIONS,
    database: Callable[[Any], Any] | None = None,
    read_only: bool = False,
    long_reads: bool = False,
) -> Queue:
    """Return the queue that `section` configures. Opens no connection.

    `prefetch_time`: seconds of the lease on prefetched tasks; None: `alive_time`. `connections`, `database`,
    `read_only`, `long_reads`: see `StoreSettings`.
    """
    own = section.store_settings(holder, connections)
    settings = replace(own, queue=section.table, database=database, read_only=read_only, long_reads=long_reads)
    store = open_stores(section.type, settings).queue
    if store is None:
        raise ConfigError(f"the store type {section.type!r} keeps no queue")
    times = LeaseTimes(section.alive_time, section.retry_wait, prefetch_time)
    kept = (section.failed_retention_time, section.stats_retention)
    return Queue(store, times, section.retention_time, section.max_attempts, *kept)

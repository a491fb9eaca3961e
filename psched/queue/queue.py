"""The queue of tasks that run once, and a reference to one task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from psched.backends import open_stores
from psched.backoff import check_attempts, check_wait
from psched.clock import boottime
from psched.config import Section
from psched.error_text import shown
from psched.errors import AlreadyExistsError, ConfigError, NotFoundError
from psched.model import TASK_STATUSES, Compression, LeaseTimes, NewTask, TaskFilter, TaskRow, TaskStatus
from psched.payload import check_key, encode, object_of
from psched.queue.settlement import TaskSettlement
from psched.schedules.validation import check_distinct, check_times
from psched.store import TaskStore
from psched.task import Task
from psched.task_source import PolledTable, Source

PRIORITIES = range(-100, 101)
"""The priorities that a task can have. Each priority in use costs every poll one more look-up."""


class Queue(PolledTable):
    """All tasks of one table. A context manager; safe to use from several threads, not across a fork."""

    store: TaskStore

    def __init__(
        self,
        store: TaskStore,
        times: LeaseTimes,
        retention: float = 300,
        max_attempts: int | None = None,
        failed_retention: float | None = None,
    ) -> None:
        """`retention`, `failed_retention`: as in `TaskSettlement`."""
        settlement = TaskSettlement(store, retention, max_attempts, failed_retention)
        super().__init__(store, settlement, times)
        self._retention = settlement.retention

    def __getitem__(self, key: str) -> QueuedTask:
        """Return a reference to a task, which need not exist."""
        return QueuedTask(self.store, self.source, check_key(key), self._retention)

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
        connection: Any = None,
    ) -> QueuedTask:
        """Create a task and return a reference to it. May be repeated until it succeeds, as the key is unique.

        The task runs at `run_at` (unix seconds; default: at once). At most `max_running` tasks of one `user` run at a
        time, those with a higher `priority` (-100 to 100) first. After `max_attempts` attempts the task has failed
        (default: as its type or the configuration says). `compression="gzip"` stores the data compressed.

        `connection`: an SQLAlchemy Connection or Session on the queue's database. The task is then written in its
        transaction. The caller commits or rolls back. The transaction stays usable, also after AlreadyExistsError.

        Raises:
            AlreadyExistsError: a task has this key. It may be finished: its key is kept for a while.
            ValueError: the key, the data or a number cannot be stored; nothing was written.
            NotSupportedError: this store does not have one of the options.
        """
        content = {} if data is None else data
        task = NewTask(key, type, content, run_at, user, max_running, priority, max_attempts, compression)
        if self.submit_many([task], connection):
            raise AlreadyExistsError(f"a task has the key {key!r} already (a finished task keeps its key for a while)")
        return self[key]

    def submit_many(self, tasks: Iterable[NewTask], connection: Any = None) -> list[str]:
        """Create many tasks, and return the keys that existed before. Their tasks are not changed.

        All are written in one transaction: the caller's, if `connection` is given as for `submit`. On Redis a
        transaction writes at most 5,000 tasks or 4 MB of data; repeat a call that failed midway. Raises ValueError and
        NotSupportedError before anything is written.
        """
        checked = [storable_task(task) for task in tasks]
        check_distinct([task.key for task in checked], "task")
        return self.store.submit(checked, connection) if checked else []

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
        """Yield the tasks with this status, type, user and beginning of the key (where given), ordered by key.

        `status` is waiting, running, finished, failed or cancelled. `late`: only waiting tasks that have been due for
        that many seconds. `after`: the key of the last task of the page before. Raises ValueError for another status,
        for `late` with a status, and for an unusable value.
        """
        if status is not None and status not in TASK_STATUSES:
            raise ValueError(f"status must be one of {', '.join(TASK_STATUSES)}, got {shown(status)}")
        for name, text in (("type", type), ("user", user), ("prefix", prefix), ("after", after)):
            if text is not None:
                check_key(text, name)
        if late is not None:
            check_wait("late", late)
            if status not in (None, "waiting"):
                raise ValueError(f"late tasks are waiting, not {status}; leave one of them out")
        return self.store.list(TaskFilter(status, type, user, prefix, late, after))


class QueuedTask:
    """A reference to one task by its key. Nothing is read until a method is called."""

    def __init__(self, store: TaskStore, source: Source, key: str, retention: float) -> None:
        self.key = key
        self._store = store
        self._source = source
        self._retention = retention

    def __repr__(self) -> str:
        return f"<QueuedTask key={self.key!r}>"

    def exists(self) -> bool:
        """Return whether the task exists now, retired or not."""
        return self._store.get(self.key) is not None

    def metadata(self) -> TaskRow:
        """Return the task as it is stored now. Raises NotFoundError."""
        row = self._store.get(self.key)
        if row is None:
            raise NotFoundError(f"no task has the key {self.key!r}")
        return row

    def cancel_request(self) -> None:
        """Cancel a waiting task at once. A running handler is asked to stop at its next heartbeat.

        If the handler finishes nevertheless, the task is finished. Raises NotFoundError, AlreadyFinishedError.
        """
        self._store.cancel_request(self.key, self._retention)

    def force_finish(self) -> None:
        """Retire the task as finished and preempt its run, if any. Raises NotFoundError, AlreadyFinishedError."""
        self._store.force_finish(self.key, self._retention)

    def preempt(self) -> Task:
        """Acquire the task, due or not, regardless of `max_running`. A run elsewhere is preempted.

        The lease lasts `alive_time`. Raises NotFoundError, AlreadyFinishedError.
        """
        asked = boottime()
        return self._source.adopt(self._store.preempt(self.key, self._source.times.alive_time), asked)

    def retry(self) -> None:
        """Make a failed or cancelled task due now, with its attempts at 0.

        Raises NotFoundError, AlreadyFinishedError if the task is finished, ScheduleError if it is waiting or running,
        and NotSupportedError on `rdb_compat`, where no task fails for good.
        """
        self._store.retry_failed(self.key)

    def delete(self) -> None:
        """Delete the task, retired or not, and preempt a run in progress. Raises NotFoundError."""
        self._store.delete(self.key)


def checked_task(task: NewTask) -> NewTask:
    """Return `task`. Raises ValueError for a field that cannot be stored."""
    encode(object_of(task.data))
    return storable_task(task)


def storable_task(task: NewTask) -> NewTask:
    """Return `task`, checked except for its data, which the store checks."""
    if not isinstance(task, NewTask):
        raise ValueError(f"tasks must be of psched.NewTask, got {shown(task)}")
    check_key(task.key)
    check_key(task.type, "type")
    object_of(task.data)
    check_times(run_at=task.run_at)
    if task.user is not None:
        check_key(task.user, "user")
    elif task.max_running is not None:
        raise ValueError(
            f"max_running {shown(task.max_running)} needs a user, whose running tasks it limits; give user= or -u"
        )
    if task.max_running is not None:
        check_attempts("max_running", task.max_running)
    if task.max_attempts is not None:
        check_attempts("max_attempts", task.max_attempts)
    priority: object = task.priority
    if not isinstance(priority, int) or isinstance(priority, bool) or priority not in PRIORITIES:
        raise ValueError(f"priority must be a whole number from -100 to 100, got {shown(priority)}")
    if task.compression not in (None, "gzip"):
        raise ValueError(f"compression must be 'gzip' or None, got {shown(task.compression)}")
    return task


def open_queue(
    section: Section,
    holder: str,
    prefetch_time: float | None = None,
    connections: int = 1,
    failed_retention: float | None = None,
) -> Queue:
    """Return the queue that `section` configures. Connects to nothing yet.

    `prefetch_time`: seconds of the lease on prefetched tasks (default: `alive_time`). `connections`: as in
    `StoreSettings`. `failed_retention`: as in `TaskSettlement`.
    """
    settings = replace(section.store_settings(holder, connections), queue=section.table)
    store = open_stores(section.type, settings).queue
    if store is None:
        raise ConfigError(f"the store type {section.type!r} keeps no queue")
    times = LeaseTimes(section.alive_time, section.retry_wait, prefetch_time)
    return Queue(store, times, section.retention_time, section.max_attempts, failed_retention)

"""Runs due tasks and schedules in the process of the test, without a daemon."""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from threading import Lock, current_thread, main_thread
from typing import Any, TypeVar

from psched.acquisition.unrunnable_rows import LOST_ATTEMPTS
from psched.application import Application
from psched.application.handler_base import retry_failed
from psched.error_messages import shown
from psched.errors import ConfigError, NotSupportedError
from psched.model import NewTask, RunOutcome
from psched.task import Task
from psched.telemetry import attach
from psched.testing.database_clock import DatabaseClock, Moment, unix_seconds
from psched.testing.faults_decorator import running
from psched.testing.open_tables import NAME_APP, OpenTables

T = TypeVar("T")

_LIMIT = 10_000


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a task or schedule.

    `outcome`: None if the handler did not settle the run. `error`: what the handler raised.
    """

    key: str
    type: str
    data: dict[str, Any] = field(repr=False)
    scheduled_time: int
    attempts: int
    outcome: RunOutcome | None
    error: BaseException | None = None


class Drain:
    """Runs due rows in the order of a single worker, and the tasks that these runs submit."""

    def __init__(self, tables: OpenTables, clock: DatabaseClock) -> None:
        self._tables = tables
        self._clock = clock
        self._lock = Lock()
        self._active = 0
        """How many calls of this object run tasks now: more than one if a handler waits for a result, or if several
        threads call.
        """
        self._left = False
        """Whether a task was submitted while a call was running tasks. That call must run this task, too."""

    def __call__(
        self,
        until: Moment | timedelta | None = None,
        *,
        tz: str | None = None,
        raises: bool = True,
        limit: int = _LIMIT,
    ) -> list[Run]:
        """Run tasks and schedules until none is due, and return their runs.

        `until`: a time as for `psched_clock.travel_to` (with `tz`), or a timedelta from now. The clock is set to each
        due time on the way, so that delayed tasks, retries and schedules run at their times. In the end it is set to
        `until`.

        `raises`: raise the first error of a handler, after its task was settled (made due again, or failed). With
        `raises=False`, the error is the `error` of its run.

        Raises:
            ConfigError: a due task has no handler; or the test has `@faults`, which itself runs the tasks.
            AssertionError: there are more than `limit` runs; perhaps a task submits itself.
            ValueError: `until` or `limit` is wrong.
            NotSupportedError: `until` is given, but the clock of this type of store cannot be set.
        """
        given: object = limit
        if not isinstance(given, int) or isinstance(given, bool) or limit < 1:
            raise ValueError(f"limit must be a whole number above 0, got {shown(limit)}")
        if running.get():
            raise ConfigError(
                "a test with @psched.testing.faults must only submit tasks: psched runs them in processes that it "
                "kills; remove psched_drain() and psched_inline"
            )
        end = self._end(until, tz)
        runs: list[Run] = []
        with self._lock:
            self._active += 1
        try:
            while True:
                self._run_due(runs, end, raises, limit)
                with self._lock:
                    if not self._left:
                        self._active -= 1
                        return runs
                    self._left = False
        except BaseException:
            with self._lock:
                self._active -= 1
            raise

    def _run_due(self, runs: list[Run], end: float | None, raises: bool, limit: int) -> None:
        """Run the rows that are due, and those that become due until `end`. Append the runs to `runs`."""
        while True:
            while tasks := self._poll():
                for task in tasks:
                    if len(runs) >= limit:
                        task.release()
                        raise AssertionError(
                            f"psched_drain stopped after {limit} runs, while another task was due ({task.key!r}); does "
                            "a task submit itself? If not, call psched_drain with a larger limit="
                        )
                    runs.append(self._run(task, raises))
            if end is None or not self._travel(end):
                return

    def _end(self, until: Moment | timedelta | None, tz: str | None) -> float | None:
        if until is None:
            return None
        now = self._tables.queue.store.now()
        end = now + until.total_seconds() if isinstance(until, timedelta) else unix_seconds(until, tz)
        if end < now:
            raise ValueError(f"until={until!s} is earlier than the clock, {self._clock.now():%Y-%m-%d %H:%M:%S %Z}")
        self._clock.travel_to(now)
        return end

    def _poll(self) -> Sequence[Task]:
        return next(filter(None, (table.poll_multi(1) for table in self._tables.opened)), ())

    def _travel(self, end: float) -> bool:
        """Set the clock to the next due time. If this time is after `end`, set the clock to `end` and return False."""
        waits = [wait for table in self._tables.opened if (wait := table.store.next_due()) is not None]
        now = self._tables.queue.store.now()
        # A due row that cannot be acquired because of its user's `max_running` waits until a lease ends.
        due = math.ceil((now + min(waits, default=math.inf)) * 1000) / 1000 if waits else math.inf
        self._clock.travel_to(min(max(due, now + 0.001), end))
        return due <= end and now < end

    def _run(self, task: Task, raises: bool) -> Run:
        run = run_task(task, self._tables.application)
        if raises and run.error is not None:
            raise run.error
        return run

    def submit_at_once(
        self, submit: Callable[[Sequence[NewTask], Any], list[str]]
    ) -> Callable[[Sequence[NewTask], Any], list[str]]:
        """Return a function that calls a store's `submit` and runs the due tasks before it returns.

        Tasks that a handler submits run after the handler has returned, so that long chains of tasks are possible.
        """

        def submit_and_run(tasks: Sequence[NewTask], connection: Any = None) -> list[str]:
            if connection is not None:
                raise NotSupportedError(
                    "psched_inline cannot run a task inside the caller's transaction, because that may still be rolled "
                    "back; use psched_queue, and call psched_drain() after the commit"
                )
            existing = submit(tasks, connection)
            with self._lock:
                self._left = runs_already = self._active > 0
            if not runs_already:
                self(limit=_LIMIT)
            return existing

        return submit_and_run

    def wait_at_once(self, wait_for: Callable[[str, float | None], Future[T]]) -> Callable[..., Future[T]]:
        """Return a function like `ResultPoller.wait_for`. If a handler waits, the function first runs the due tasks.

        Otherwise the handler would wait for ever, because the test is the only worker.
        """

        def run_and_wait(key: str, timeout: float | None) -> Future[T]:
            if self._active:
                for run in self(raises=False):
                    # the result already reports this error
                    if run.error is not None and (run.key, run.outcome) != (key, "failed"):
                        raise run.error
            return wait_for(key, timeout)

        return run_and_wait


def run_task(task: Task, application: Application) -> Run:
    """Run an acquired task as a daemon does, and settle it.

    Raises ConfigError if there is no handler. Also raises exceptions such as KeyboardInterrupt, which are not
    subclasses of `Exception`. In both cases the task is released.
    """
    errors: list[BaseException] = []

    def on_error(_: str, fields: dict[str, Any]) -> None:
        if fields["task"] is task:
            errors.append(fields["error"])

    detach = attach(on_error, "run_error")
    try:
        _off_the_event_loop(partial(_call, task, application), application.close)
    except BaseException:
        if task.in_flight:
            task.release()
        raise
    finally:
        detach()
    error = errors[-1] if errors else None
    return Run(task.key, task.type, task.data, task.scheduled_time, task.attempts, task.outcome, error)


def _call(task: Task, application: Application) -> None:
    try:
        handler = application.handler(task)
        if handler is not None:
            task.max_attempts = getattr(handler, "max_attempts", None)
            if task.attempts_exhausted:
                task.retry(error=LOST_ATTEMPTS)
            else:
                handler.run()
    except Exception as error:  # noqa: BLE001 – an error of the application ends this run only, as in a daemon
        if not task.lease_lost:
            retry_failed(task, error)
        return
    if handler is None:
        raise ConfigError(f"no handler for the type {task.type!r} of {task.key!r}; {NAME_APP}")


def _off_the_event_loop(call: Callable[[], None], close: Callable[[], None]) -> None:
    """Call `call` in this thread, or in a new thread that finally calls `close`.

    A new thread is needed if an event loop runs in this thread, because `async def` handlers need their own loop. The
    loop of this thread stands still meanwhile. A new thread is also needed if this thread may end before the fixtures
    do, such as the thread of `asubmit`.
    """
    if current_thread() is main_thread() and not _in_event_loop():
        call()
        return

    def call_and_close() -> None:
        try:
            call()
        finally:
            close()

    with ThreadPoolExecutor(1, "psched handler") as thread:
        thread.submit(contextvars.copy_context().run, call_and_close).result()


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True

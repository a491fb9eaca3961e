"""What runs on the scheduler's threads: ticks, which make tasks of occurrences, and the calls of bound functions."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from typing import Any

from psched.application.event_loop import CancellableRun, EventLoops
from psched.application.handler import Base
from psched.application.routing import HandlerFactory
from psched.errors import NotFoundError, ScheduleError
from psched.queue.queue import checked_task
from psched.scheduler.job_data import JobData
from psched.task import Task

log = logging.getLogger(__name__)

Function = Callable[[Any], Any]
"""What is bound: it is called with the data; returning False, or raising, means that it failed."""

SHORTEST_LEASE = 3.0
"""Seconds of lease that a running task has at the least, however short its retry_timeout: time to renew it."""

current: ContextVar[Task | None] = ContextVar("psched_scheduler_task", default=None)
"""The task that the calling handler runs."""


def check_function(name: str, function: object) -> None:
    """Raise ValueError unless `function` can be bound to this name."""
    if not callable(function):
        raise ValueError(f"{name!r}: expected a function to bind, got {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ValueError(f"{name!r}: {function!r} is a generator, which would never run; use return, not yield")


class OccurrenceHandler(Base):
    """Turns one occurrence of a registration into one task; the registration moves on in the same transaction."""

    def __init__(self, task: Task, is_unavailable: Callable[[Exception], bool], made: Callable[[], None]) -> None:
        """`made` is called when there is a new task."""
        super().__init__(task)
        self._is_unavailable = is_unavailable
        self._made = made

    def run(self) -> None:
        """Submit the task and move on. When the database does not answer, the occurrence comes back in a moment."""
        occurrence = self.task
        key = occurrence.enqueued_key
        order = JobData.of(occurrence.data)
        wanted = checked_task(order.task(key, occurrence.type, occurrence.scheduled_time))
        try:
            occurrence.finish_by_submitting(wanted)
        except ScheduleError as error:
            log.info("key=%s another instance submits this occurrence: %s", key, error)
            occurrence.stop_reason = error
        except Exception as error:
            if not self._is_unavailable(error):
                raise
            log.warning("key=%s is not a task yet, as the database does not answer; it comes back", key)
            occurrence.stop_reason = error
        else:
            self._made()


class OccurrenceRouter:
    """The router of registrations of the names that are bound."""

    def __init__(
        self, names: Collection[str], is_unavailable: Callable[[Exception], bool], made: Callable[[], None]
    ) -> None:
        self._names = names
        self._is_unavailable = is_unavailable
        self._made = made

    def route(self, type: str) -> HandlerFactory:
        """Return what makes a tick, whatever the registration is named."""
        return lambda task: OccurrenceHandler(task, self._is_unavailable, self._made)

    def routed_types(self) -> Collection[str]:
        """Return the names that are bound."""
        return self._names

    def check(self) -> None:
        """Nothing can be wrong."""

    def close(self) -> None:
        """Nothing is kept."""


class FunctionCall(Base):
    """One call of a bound function."""

    def __init__(self, task: Task, function: Function, loops: EventLoops) -> None:
        super().__init__(task)
        self._function = function
        self._loops = loops
        self._running = CancellableRun()
        self._order = JobData.of(task.data)
        self.retry_wait = self._order.retry_timeout if self._order.retry else None

    def perform(self) -> None:
        """Call the function with the data, await what it returns if that can be awaited, and settle."""
        if self._order.retry:
            self._take_own_lease()
        token = current.set(self.task)
        try:
            result = self._function(self._order.data)
            if inspect.isawaitable(result):
                result = self._running.run(result, self._loops.runner())
        finally:
            current.reset(token)
        try:
            self._settle(result)
        except NotFoundError as error:
            self._row_is_gone(error)

    def decide(self, decision: str, **options: Any) -> Any:
        """Let the decider decide, unless there is no row any more of which anything could become."""
        try:
            return super().decide(decision, **options)
        except NotFoundError as error:
            self._row_is_gone(error)

    def kill(self, reason: Exception) -> None:
        """Cancel what is awaited; a plain function goes on."""
        self._running.cancel()

    def _take_own_lease(self) -> None:
        """Let the lease last for about retry_timeout: so long after a crash somebody else begins it again."""
        self.task.alive_time = max(self._order.retry_timeout, SHORTEST_LEASE)
        self.task.heartbeat()

    def _settle(self, result: object) -> None:
        if result is False:
            self._failed()
        else:
            self.task.finish()

    def _row_is_gone(self, error: NotFoundError) -> None:
        """Leave it at that: somebody has cleared or deleted what was running."""
        log.warning("key=%s type=%s was removed while it ran: %s", self.task.key, self.task.type, error)
        self.task.stop_reason = error

    def _failed(self) -> None:
        again = f"again in {self.retry_wait:g} s" if self.retry_wait is not None else "it is not tried again"
        log.warning("key=%s type=%s its handler returned False; %s", self.task.key, self.task.type, again)
        self.task.retry(self.retry_wait, error="the handler returned False")


class FunctionRouter:
    """The router of tasks: those of the names that are bound."""

    def __init__(self, bindings: Mapping[str, Function]) -> None:
        self._bindings = bindings
        self._loops = EventLoops()

    def route(self, type: str) -> HandlerFactory | None:
        """Return what makes the call for a name, or None when it is not bound."""
        function = self._bindings.get(type)
        return None if function is None else lambda task: FunctionCall(task, function, self._loops)

    def routed_types(self) -> Collection[str]:
        """Return the names that are bound."""
        return tuple(self._bindings)

    def check(self) -> None:
        """Nothing can be wrong."""

    def close(self) -> None:
        """Close the event loop of the calling thread."""
        self._loops.close()

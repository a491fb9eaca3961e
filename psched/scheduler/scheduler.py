"""The scheduler as its host sees it: bind, register, push, start, stop. Any thread of the host's process."""

from __future__ import annotations

import atexit
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, TypeVar, overload

from psched import fork_safety as forks
from psched.errors import ConfigError, IdempotentError, NotFoundError, ScheduleError
from psched.model import Rule, TaskFilter
from psched.queue.queue import storable_task
from psched.scheduler.calls import Function, check_function, current
from psched.scheduler.job_data import check_seconds, checked_name, order, refuse_options
from psched.scheduler.registrations import Registration
from psched.scheduler.stores import OpenStores, StoreLocation, place_of
from psched.scheduler.threads import SchedulerThreads, SchedulerWork, names_of
from psched.schedules.collection import checked_rule
from psched.suggest import shown
from psched.task import Task

F = TypeVar("F", bound=Function)

_EXIT_PATIENCE = 10.0
"""Seconds that a host which ends without a stop waits for running handlers."""


class Scheduler:
    """An instance of a scheduler. Instances with the same URL and prefix, in any process, work together.

    A context object: entering starts it, leaving stops it. Made before a fork it may be started after it, in each
    process of its own; a started one does not survive a fork.
    """

    def __init__(self, place: StoreLocation, poll_interval: float, concurrency: int) -> None:
        """Connects to nothing yet; see `create_scheduler`."""
        self._place = place
        self._poll_interval = poll_interval
        self._concurrency = concurrency
        self._bindings: dict[str, Function] = {}
        self._registrations: dict[str, Registration] = {}
        self._engine: SchedulerThreads | None = None
        self._ending: SchedulerThreads | None = None
        self._client: OpenStores | None = None
        self._abandoned: list[OpenStores | None] = []
        self._pid = os.getpid()
        self._lock = threading.RLock()
        forks.register_for_fork(self)

    def __enter__(self) -> Scheduler:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def current(self) -> Task | None:
        """The task that the calling handler runs (its key, scheduled_time and attempts), None elsewhere."""
        return current.get()

    @overload
    def bind(self, name: str) -> Callable[[F], F]: ...

    @overload
    def bind(self, name: str, function: F) -> F: ...

    def bind(self, name: str, function: F | None = None) -> Callable[[F], F] | F:
        """Let this instance run tasks of this name by `function`, which gets their data; also as a decorator.

        It runs in a thread of the scheduler, an `async def` on an event loop of that thread. Returning False, or
        raising, means that it failed.

        Raises:
            ScheduleError: the scheduler is running, or the name is bound already.
            ValueError: the name or the function cannot be used.
        """
        self._refuse_running("bind")
        text = checked_name(name)

        def decorate(function: F) -> F:
            self._refuse_running("bind")
            check_function(text, function)
            if text in self._bindings:
                raise ScheduleError(f"{text!r} is bound already, to {self._bindings[text]!r}; bind each name once")
            self._bindings[text] = function
            return function

        return decorate if function is None else decorate(function)

    def register(
        self,
        name: str,
        cron: str,
        *,
        data: Any = None,
        retry: bool = False,
        retry_timeout: float | None = None,
        timezone: str | None = None,
    ) -> None:
        """Let a task of this name be made at each time that `cron` (five fields, or six with seconds first) matches.

        It is stored at `start`; one that is stored already is changed then. `data`: any JSON value. `timezone`: the
        scheduler's own by default. `retry`, `retry_timeout`: as for `push`.

        Raises:
            ScheduleError: the scheduler is running, or the name is registered already.
            ConfigError: the cron expression or the time zone cannot be used.
            ValueError: another value cannot.
        """
        self._refuse_running("register")
        section = self._place.settings.sections[0]
        refuse_options("register", name, cron)
        if not isinstance(cron, str):
            raise ConfigError(f"cron must be text like '*/10 * * * *', got {shown(cron)}")
        rule = checked_rule(Rule(cron, section.timezone if timezone is None else timezone), section.cron_dialect)
        wanted = order(data, retry, retry_timeout)
        wanted.check_data()
        before = self._registrations.get(checked_name(name))
        if before is not None:
            again = f"register each name once, or unregister({name!r}) first"
            raise ScheduleError(f"{name!r} is registered already, with {before.rule.cron!r}; {again}")
        self._registrations[name] = Registration(name, rule, wanted)

    def unregister(self, name: str) -> bool:
        """Remove the registration, here and in the store, whoever stored it; False when the store had none.

        Tasks that it has made stay. An instance that still registers the name stores it again when it starts.
        """
        with self._using() as opened:
            self._registrations.pop(name, None)
            try:
                opened.schedules[checked_name(name)].delete()
            except NotFoundError:
                return False
            return True

    @overload
    def push(
        self,
        name: str,
        data: Any,
        /,
        *,
        delay: float = 0,
        retry: bool = False,
        retry_timeout: float | None = None,
    ) -> str: ...

    @overload
    def push(
        self,
        name: str,
        *,
        data: Any = None,
        delay: float = 0,
        retry: bool = False,
        retry_timeout: float | None = None,
    ) -> str: ...

    def push(
        self,
        name: str,
        *positional: Any,
        data: Any = None,
        delay: float = 0,
        retry: bool = False,
        retry_timeout: float | None = None,
    ) -> str:
        """Submit a task that is run once, at once or `delay` seconds from now, and return its key. Needs no `start`.

        `data`: any JSON value, by position or keyword; by position no mapping that has only option names of
        schedule-mq, since those are keywords here. The task is run by an instance that has bound `name`. Without
        `retry` it is begun at most once. With it, it is begun again `retry_timeout` seconds (None: 60) after it
        failed, or its process died, until a handler succeeds.

        Raises:
            ScheduleError: this process was forked off a process in which the scheduler is started.
            ValueError: a value cannot be stored.
        """
        if positional:
            if len(positional) > 1 or data is not None:
                raise TypeError("push takes a name and data; delay, retry and retry_timeout are given by keyword")
            (data,) = positional
            refuse_options("push", name, data)
        wanted = order(data, retry, retry_timeout)
        check_seconds("delay", delay)
        key = f"push:{secrets.token_hex(16)}"
        with self._using() as opened:
            run_at = opened.queue.now() + delay if delay > 0 else None
            opened.queue.submit([storable_task(wanted.task(key, checked_name(name), run_at))])
            if run_at is None:
                opened.chime.ring()
        return key

    def start(self) -> None:
        """Store what is registered and begin to work, in threads of this process; returns when that is done.

        A database that does not answer is waited for in the background.

        Raises:
            ScheduleError: it is running; something is registered that is not bound; or it was started before a fork.
            ConfigError: the database refuses us, or its tables are not ours.
        """
        with self._here():
            self._refuse_running("start")
            unbound = self._registrations.keys() - self._bindings.keys()
            if unbound:
                raise ScheduleError(
                    f"registered, but not bound to a handler: {names_of(unbound)}; bind each before the start"
                )
            work = SchedulerWork(
                dict(self._bindings), dict(self._registrations), self._poll_interval, self._concurrency
            )
            engine = SchedulerThreads(self._place.open(self._concurrency), work)
            self._engine = engine
            atexit.register(self._at_exit)  # first, as Ctrl-C may come any time
            try:
                engine.start()
            except Exception:
                self._engine = None
                atexit.unregister(self._at_exit)
                raise

    def stop(self, timeout: float | None = None) -> bool:
        """Take no more tasks, and wait for running handlers, at most `timeout` seconds; False when that was too short.

        What runs then goes on in its thread, its lease kept, and another `stop` waits for it again. A database that is
        away holds nobody up. Does nothing when it is not running; can be started again. Raises ScheduleError when a
        handler calls it, which it would wait for, ValueError for a timeout that is no number of seconds.
        """
        if timeout is not None:
            check_seconds("timeout", timeout)
        with self._here():
            if any(engine is not None and engine.runs_here() for engine in (self._engine, self._ending)):
                raise ScheduleError("a handler cannot stop its scheduler, which waits for handlers; let another thread")
            if self._engine is not None:
                self._ending, self._engine = self._engine, None
            ending = self._ending
            atexit.unregister(self._at_exit)
        done = ending is None or ending.stop(timeout)  # not under the lock: a running handler may push
        with self._here():
            if done and self._ending is ending:
                self._ending = None
            client, self._client = self._client, None
        if client is not None:
            client.close()
        return done

    def clear(self) -> None:
        """Remove all registrations and tasks of this URL and prefix from the store, also those of other instances.

        What is running goes on, but cannot be settled. What this code registers is stored again at the next `start`.
        """
        with self._using() as opened:
            for row in opened.schedules.list():
                with suppress(IdempotentError):  # it is gone already
                    opened.schedules.store.delete(row.key)
            for task in opened.queue.list(TaskFilter()):
                with suppress(IdempotentError):
                    opened.queue.delete(task.key)

    @contextmanager
    def _using(self) -> Iterator[OpenStores]:
        """Lend the stores to the calling thread: a `stop` meanwhile does not close them under its hands."""
        with self._here():
            opened = self._opened()
            opened.borrow()
        try:
            yield opened
        finally:
            opened.give_back()

    def _opened(self) -> OpenStores:
        """Return the running engine's stores, or some for what needs no start, their tables made."""
        if self._engine is not None and self._engine.is_ready:
            return self._engine.opened
        if self._client is None:
            client = self._place.open()
            client.make_tables()
            self._client = client
        return self._client

    def begin_anew(self) -> None:
        """In a process that was forked off: use nothing that the parent opened; what it started is not started here."""
        self._lock = threading.RLock()
        self._abandoned.append(self._client)  # closing it here could end the parent's sessions
        self._client = self._ending = None
        if self._engine is None:
            self._pid = os.getpid()

    def _here(self) -> threading.RLock:
        """Return the lock, for a process in which the scheduler may be used. Raises ScheduleError."""
        pid = os.getpid()
        if pid != self._pid:
            raise ScheduleError(
                f"this scheduler was started in process {self._pid}, before this process ({pid}) was forked off; "
                "start it in each process (gunicorn: in post_fork or the worker's application)"
            )
        return self._lock

    def _refuse_running(self, verb: str) -> None:
        with self._here():
            if self._engine is not None:
                raise ScheduleError(f"cannot {verb} while the scheduler is running; stop it first")

    def _at_exit(self) -> None:
        """Stop with the interpreter, which does not wait for our threads by itself."""
        if os.getpid() == self._pid and self._engine is not None:
            self._engine.stop(_EXIT_PATIENCE, leave_rest=True)


def create_scheduler(
    url: str,
    *,
    prefix: str = "_schedule_mq:",
    poll_interval: float = 1.0,
    concurrency: int = 4,
    timezone: str = "UTC",
    retention_time: float = 300.0,
    tls: Mapping[str, Any] | None = None,
    pooler: str | None = None,
) -> Scheduler:
    """Return a scheduler on the database at `url`; nothing is connected yet.

    `prefix` sets apart schedulers that share a database: its tables are named after it. `concurrency`: how many
    handlers this instance runs at a time. `timezone`: of registrations that name none. `retention_time`: seconds for
    which tasks that are over are kept. `poll_interval`: seconds between looks at a database that calls nobody.
    `tls` and `pooler` are the configuration's keys of these names.

    Raises ConfigError.
    """
    place = place_of(url, prefix, timezone, {} if tls is None else tls, retention_time, pooler)
    place.open().close()  # what is wrong with the URL is said here, not in the first push
    check_seconds("poll_interval", poll_interval, above=True)
    if type(concurrency) is not int or not 1 <= concurrency <= 1000:
        raise ValueError(f"concurrency must be a number of threads from 1 to 1000, got {shown(concurrency)}")
    return Scheduler(place, poll_interval, concurrency)

"""The public Scheduler: bind, register, push, start, stop. Callable from any thread of the host's process."""

from __future__ import annotations

import atexit
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from psched import fork_safety
from psched.application.task_function import TaskFunction
from psched.async_methods import run_in_thread
from psched.config import Settings
from psched.error_messages import shown
from psched.errors import IdempotentError, NotFoundError, ScheduleError
from psched.model import ScheduleRow, TaskFilter
from psched.payload import encode
from psched.queue.queue import Queue, storable_task
from psched.retry_wait import check_wait
from psched.scheduler.argument_checks import check_positive, checked_name, refuse_options
from psched.scheduler.function_handlers import Function, check_function, current
from psched.scheduler.registered_schedules import (
    At,
    Every,
    Registration,
    RegistrationChanges,
    RegistrationTerms,
    check_names,
    checked_rule_of,
    expression_of,
    store_registration,
)
from psched.scheduler.stores import (
    OpenStores,
    create_missing_table,
    open_scheduler_queue,
    open_scheduler_stores,
    scheduler_settings,
)
from psched.scheduler.task_data import TaskData, checked_task_data
from psched.scheduler.threads import SchedulerThreads
from psched.schedules.schedule_handle import Schedule
from psched.submit_telemetry import SubmitCall
from psched.task import Task

F = TypeVar("F", bound=Function)
P = ParamSpec("P")
R = TypeVar("R")

_NO_RETRY = "retry is for functions bound by a name; write retry_wait= in @app.task(…)"
_ANY = "@hourly"
"""An expression that is used to check a time zone."""
_EXIT_TIMEOUT = 10.0
"""At exit, the interpreter waits this many seconds for running handlers if the host has not called `stop`."""


class Scheduler:
    """One instance of a scheduler. All instances with the same URL and prefix, in any process, share the work.

    A scheduler is a context manager: entering it starts the scheduler, leaving it stops the scheduler. A scheduler
    created before a fork may be started after the fork, in each process. A started scheduler does not survive a fork.
    """

    def __init__(self, settings: Settings, poll_interval: float, concurrency: int, misfire_grace_time: float) -> None:
        """Does not connect yet; see `create_scheduler`."""
        self._settings = settings
        self._poll_interval = poll_interval
        self._concurrency = concurrency
        self._misfire_grace_time = misfire_grace_time
        self._bindings: dict[str, Function] = {}
        self._registrations: dict[str, Registration] = {}
        self._threads: SchedulerThreads | None = None
        """The threads of the started scheduler, else None."""
        self._stopping: SchedulerThreads | None = None
        """The threads of a stop that is not complete yet."""
        self._client_stores: OpenStores | None = None
        """The stores for calls that come while the scheduler is not started."""
        self._parents_stores: list[OpenStores | None] = []
        self._pid = os.getpid()
        self._lock = threading.RLock()
        fork_safety.register_for_fork(self)

    def __enter__(self) -> Scheduler:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def current(self) -> Task | None:
        """The task that the calling handler runs, with its key, scheduled_time and attempts.

        None outside of a handler.
        """
        return current.get()

    @overload
    def bind(self, name: str) -> Callable[[F], F]: ...

    @overload
    def bind(self, name: str, function: F) -> F: ...

    @overload
    def bind(self, name: TaskFunction[P, R]) -> TaskFunction[P, R]: ...

    def bind(self, name: str | TaskFunction[..., Any], function: Any = None) -> Any:
        """Call `function` with the data of each task of this name that this instance runs. Also usable as a decorator.

        The function runs in a thread of the scheduler; an `async def` runs on an event loop of that thread. The
        function fails by returning False or by raising.

        A function that an `App` has decorated is bound without a name: `bind(report)`. The function's tasks have the
        same name, arguments and options as in a daemon. After `psched.configure(scheduler)`, the function's `submit`
        submits to this scheduler.

        Raises:
            ConfigError: the tasks of a decorated function cannot be stored.
            ScheduleError: the scheduler is running, the name is bound already, or the data of its registration does not
                fit the decorated function.
            ValueError: the name or the function is not valid.
        """
        self._refuse_running("bind")
        if isinstance(name, TaskFunction):
            name.parameters.check(name.stores_result)
            before = self._registrations.get(checked_name(name.type))
            if before is not None:
                name.parameters.restored(before.data)
            return self._bind(checked_name(name.type), name)
        text = checked_name(name)

        def decorate(function: F) -> F:
            self._refuse_running("bind")
            check_function(text, function)
            return self._bind(text, function)

        return decorate if function is None else decorate(function)

    def register(
        self,
        name: str | TaskFunction[..., Any],
        cron: str | None = None,
        *,
        every: Every | None = None,
        at: At | None = None,
        data: Any = None,
        retry: bool = False,
        retry_timeout: float | None = None,
        timezone: str | None = None,
        **terms: Unpack[RegistrationTerms],
    ) -> None:
        """Submit a task of this name at each time that matches `cron` (five fields, or six with seconds first).

        Give `every` or `at` instead of `cron` for an interval or a single task:

        - `every`: an interval as whole seconds, a timedelta, or text such as "5m".
        - `at`: the time of a single task, as a datetime (without a zone: in `timezone`) or unix seconds.
        - `data`: any JSON value.
        - `timezone`: the default is the scheduler's time zone.
        - `retry`, `retry_timeout`: the same as for `push`.
        - `delay` (seconds), `catch_up`, `max_lateness`, `alert_after`, `owner`, `description`, `tags`, `start`, `end`,
          `spread`, `max_runs`, `exclude`: the options of `ScheduleCollection.add`. An option that is not given stays as
          it is in the store.

        The method `start` adds the registration to the store, or changes the stored one. If the scheduler is running
        already, this call does so. If instances register a name differently, the last instance wins, and logs its
        changes.

        A function that an `App` has decorated may be given instead of a name. Then `data` is a mapping of its
        arguments.

        Raises:
            ScheduleError: the name is registered already; or the scheduler is running and the name is not bound.
            ConfigError: the expression or the time zone is not valid.
            ValueError: another value is not valid.
            TypeError: an option is unknown, or the decorated function cannot be called with `data`.
        """
        refuse_options("register", str(name), cron)
        check_names(terms)
        section = self._settings.sections[0]
        zone = section.timezone if timezone is None else timezone
        if at is not None:
            checked_rule_of(_ANY, zone, {}, section.cron_dialect)  # check the time zone before `at` is read in it
        rule = checked_rule_of(expression_of(cron, every, at, zone), zone, terms, section.cron_dialect)
        if isinstance(name, TaskFunction):
            text, stored = checked_name(name.type), _arguments(name, data, retry, retry_timeout)
        else:
            text, stored = checked_name(name), checked_task_data(data, retry, retry_timeout).stored()
            self._refuse_task_function(text, "register")
        encode(stored)
        registration = Registration(text, rule, stored, dict(terms))
        with self._checked_lock():
            before = self._registrations.get(text)
            if before is not None:
                again = f"modify({text!r}, …) changes it, and unregister({text!r}) removes it"
                raise ScheduleError(f"{text!r} is registered already, with {before.rule.cron!r}; {again}")
            if self._threads is not None and text not in self._bindings:
                raise ScheduleError(f"{text!r} is not bound to a handler; bind it before the start")
            self._registrations[text] = registration
            is_running = self._threads is not None and self._threads.is_ready  # otherwise the start stores it
        if is_running:
            try:
                with self._stores() as stores:
                    store_registration(stores.schedules, registration)
            except BaseException:
                self._registrations.pop(text, None)
                raise

    def modify(self, name: str | TaskFunction[..., Any], **changes: Unpack[RegistrationChanges]) -> None:
        """Change the given values of a registration in the store, and in this instance if it has the registration.

        The values are those of `register`. With a new rule, the next occurrence is the first match from now on, but an
        occurrence that is due already stays. A pause stays. The scheduler may be running or not.

        Raises:
            NotFoundError: neither the store nor this instance has this registration.
            ConfigError, ValueError: a value is not valid; nothing was changed.
            TypeError: as in `register`; nothing was changed.
        """
        check_names(changes)
        text = self._name(name)
        given: dict[str, Any] = dict(changes)
        times = {key: given.pop(key, None) for key in ("cron", "every", "at")}
        of_task: dict[str, Any] = {key: given.pop(key) for key in ("data", "retry", "retry_timeout") if key in given}
        zone = given.pop("timezone", None)
        dialect = self._settings.sections[0].cron_dialect
        with self._stores() as stores:
            row = stores.schedules.store.get(text)
            before = self._registrations.get(text)
            if row is None and before is None:
                raise NotFoundError(f"no registration has the name {text!r}")
            rule = before.rule if row is None and before is not None else row.rule  # type: ignore[union-attr]
            data = before.data if row is None and before is not None else row.data  # type: ignore[union-attr]
            zone = rule.timezone if zone is None else zone
            checked_rule_of(_ANY, zone, {}, dialect)
            has_time = any(value is not None for value in times.values())
            expression = expression_of(**times, timezone=zone) if has_time else rule.cron
            new = checked_rule_of(expression, zone, given, dialect)
            if of_task:
                data = self._changed_data(name, text, data, of_task)
            if row is not None:
                changed = Registration(text, new, data, given)
                stores.schedules[text].modify(**changed.changes)
            if before is not None:
                self._registrations[text] = Registration(text, new, data, {**before.terms, **given})

    def _changed_data(
        self, name: str | TaskFunction[..., Any], text: str, stored: Mapping[str, Any], given: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return the stored data with the changes applied. Raises ValueError."""
        function = name if isinstance(name, TaskFunction) else self._bindings.get(text)
        if isinstance(function, TaskFunction):
            if "data" not in given:
                raise ValueError(f"{text!r}: {_NO_RETRY}")
            return _arguments(function, given["data"], given.get("retry", False), given.get("retry_timeout"))
        before = TaskData.of(stored)
        retry = given.get("retry", before.retry)
        timeout = given.get("retry_timeout", before.retry_timeout)
        data = checked_task_data(given.get("data", before.data), retry, timeout).stored()
        encode(data)
        return data

    def pause(self, name: str | TaskFunction[..., Any]) -> bool:
        """Stop submitting tasks of a registration until `resume`, even after a restart.

        Return False if it was paused already. Raises NotFoundError if the store has no such registration.
        """
        with self._stored(name) as schedule:
            return schedule.pause()

    def resume(self, name: str | TaskFunction[..., Any]) -> bool:
        """End the pause of a registration. Occurrences during the pause are skipped. Return False if it was not paused.

        Raises NotFoundError if the store has no such registration.
        """
        with self._stored(name) as schedule:
            return schedule.resume()

    def run_now(self, name: str | TaskFunction[..., Any]) -> None:
        """Submit a task of a registration now, even if the registration is paused.

        The regular occurrences do not change. A started instance submits the task. Raises NotFoundError, and
        ScheduleError while an occurrence is being submitted.
        """
        with self._stored(name) as schedule:
            schedule.run_now()

    def registrations(self) -> list[ScheduleRow]:
        """Return the registrations in the store, including those of other instances, ordered by their next run."""
        with self._stores() as stores:
            return [row for row in stores.schedules.list() if not row.is_backfill]

    @contextmanager
    def _stored(self, name: str | TaskFunction[..., Any]) -> Iterator[Schedule]:
        """Yield the stored schedule of a registration. Raises NotFoundError with the name of the registration."""
        text = self._name(name)
        with self._stores() as stores:
            try:
                yield stores.schedules[text]
            except NotFoundError:
                later = "; the start of this scheduler stores it" if text in self._registrations else ""
                raise NotFoundError(f"the database has no registration {text!r}{later}") from None

    def _name(self, name: str | TaskFunction[..., Any]) -> str:
        return checked_name(name.type if isinstance(name, TaskFunction) else name)

    def unregister(self, name: str | TaskFunction[..., Any]) -> bool:
        """Remove the registration from this instance and from the store. Return False if the store did not have it.

        Tasks that were submitted stay. If another instance registers the name, the next start of that instance stores
        the registration again.
        """
        text = self._name(name)
        with self._stores() as stores:
            self._registrations.pop(text, None)
            try:
                stores.schedules[text].delete()
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
        """Submit a task that runs once, now or in `delay` seconds. Return its key. The scheduler need not be started.

        Any instance that has bound `name` runs the task. Without `retry` the task starts at most once. With `retry` a
        task that failed, or whose process died, starts again `retry_timeout` seconds later (None: 60), until a handler
        succeeds.

        `data`: any JSON value, given by position or keyword. A mapping that is given by position is refused if all its
        names are options of schedule-mq, because psched takes options as keywords.

        Raises:
            ScheduleError: the scheduler was started before this process was forked.
            ValueError: a value cannot be stored.
        """
        if positional:
            if len(positional) > 1 or data is not None:
                raise TypeError("push takes a name and data; give delay, retry and retry_timeout by keyword")
            (data,) = positional
            refuse_options("push", name, data)
        task_data = checked_task_data(data, retry, retry_timeout)
        check_wait("delay", delay)
        self._refuse_task_function(name, "push")
        key = f"push:{secrets.token_hex(16)}"
        with self._stores() as stores:
            run_at = stores.queue.now() + delay if delay > 0 else None
            task = storable_task(task_data.task(key, checked_name(name), run_at))
            with SubmitCall([task], stores.queue.keeps_headers) as call:
                stores.queue.submit(call.tasks)
            if run_at is None:
                stores.wakeup.wake_one()
        return key

    async def apush(
        self,
        name: str,
        *,
        data: Any = None,
        delay: float = 0,
        retry: bool = False,
        retry_timeout: float | None = None,
    ) -> str:
        """Like `push`, in a thread, without blocking the event loop."""
        return await run_in_thread(self.push, name, data=data, delay=delay, retry=retry, retry_timeout=retry_timeout)

    def open_queue(self) -> Queue:
        """Open the queue of this scheduler's tasks. A missing table is created. The caller must close the queue.

        If the database can wake the scheduler (PostgreSQL, Redis), a task that is submitted to this queue runs
        immediately, otherwise at the next poll. Raises ConfigError.
        """
        assert self._settings.queue is not None
        queue = open_scheduler_queue(self._settings.queue)
        try:
            create_missing_table(queue.store)
        except BaseException:
            queue.close()
            raise
        return queue

    def start(self) -> None:
        """Store the registrations and start the threads.

        If the database does not answer now, the threads store the registrations later.

        Raises:
            ScheduleError: the scheduler is running, or was started before a fork, or a registered name is not bound.
            ConfigError: the database refuses the login, or has tables of these names that psched cannot use.
        """
        with self._checked_lock():
            self._refuse_running("start")
            unbound = sorted(self._registrations.keys() - self._bindings.keys())
            if unbound:
                names = ", ".join(map(repr, unbound))
                raise ScheduleError(f"registered, but not bound to a handler: {names}; bind each before the start")
            threads = SchedulerThreads(
                self._settings,
                open_scheduler_stores(self._settings, self._concurrency),
                dict(self._bindings),
                self._registrations,
                self._poll_interval,
                self._concurrency,
                self._misfire_grace_time,
            )
            self._threads = threads
            atexit.register(self._stop_at_exit)  # set before the threads start, as Ctrl-C may come at any time
            try:
                threads.start()
            except Exception:
                self._threads = None
                atexit.unregister(self._stop_at_exit)
                raise

    def stop(self, timeout: float | None = None) -> bool:
        """Acquire no more tasks, and wait for running handlers.

        Return False if a handler is still running after `timeout` seconds. Such a handler continues in its thread with
        its lease, and another `stop` waits for it again. A database that does not answer does not delay the stop. If
        the scheduler is not running, the call only closes its connections. A stopped scheduler can be started again.

        Raises:
            ScheduleError: a handler of this scheduler calls this method.
            ValueError: `timeout` is not a number of seconds.
        """
        if timeout is not None:
            check_wait("timeout", timeout)
        with self._checked_lock():
            if any(
                threads is not None and threads.owns_current_thread() for threads in (self._threads, self._stopping)
            ):
                raise ScheduleError("a handler cannot stop its scheduler, which waits for handlers; use another thread")
            if self._threads is not None:
                self._stopping, self._threads = self._threads, None
            stopping = self._stopping
            atexit.unregister(self._stop_at_exit)
        done = stopping is None or stopping.stop(timeout)  # without the lock, as a running handler may push
        with self._checked_lock():
            if done and self._stopping is stopping:
                self._stopping = None
            client_stores, self._client_stores = self._client_stores, None
        if client_stores is not None:
            client_stores.close()
        return done

    def clear(self) -> None:
        """Remove all registrations and tasks of this URL and prefix from the store, including those of other instances.

        Running handlers continue, but their tasks cannot be settled. The next `start` stores the registrations again.
        """
        with self._stores() as stores:
            for row in stores.schedules.list():
                with suppress(IdempotentError):  # another client has deleted it
                    stores.schedules.store.delete(row.key)
            for task in stores.queue.list(TaskFilter()):
                with suppress(IdempotentError):
                    stores.queue.delete(task.key)

    @contextmanager
    def _stores(self) -> Iterator[OpenStores]:
        """Yield open stores whose tables exist: the stores of the threads if the threads are ready, else other stores.

        A `stop` does not close the stores until the context ends.
        """
        with self._checked_lock():
            if self._threads is not None and self._threads.is_ready:
                stores = self._threads.stores
            else:
                if self._client_stores is None:
                    client_stores = open_scheduler_stores(self._settings)
                    client_stores.create_tables()
                    self._client_stores = client_stores
                stores = self._client_stores
            stores.begin_use()
        try:
            yield stores
        finally:
            stores.end_use()

    def reset_after_fork(self) -> None:
        """In a forked process: forget the connections of the parent.

        A scheduler that was started stays unusable in this process.
        """
        self._lock = threading.RLock()
        self._parents_stores.append(self._client_stores)  # not closed, as closing them could end the parent's sessions
        self._client_stores = self._stopping = None
        if self._threads is None:
            self._pid = os.getpid()

    def _checked_lock(self) -> threading.RLock:
        """Return the lock. Raises ScheduleError if this process was forked after the scheduler was started."""
        pid = os.getpid()
        if pid != self._pid:
            raise ScheduleError(
                f"this scheduler was started in process {self._pid}, before this process ({pid}) was forked off; "
                "start it in each process (gunicorn: in post_fork or the worker's application)"
            )
        return self._lock

    def _refuse_running(self, verb: str) -> None:
        with self._checked_lock():
            if self._threads is not None:
                raise ScheduleError(f"cannot {verb} while the scheduler is running; stop it first")

    def _bind(self, name: str, function: F) -> F:
        if name in self._bindings:
            raise ScheduleError(f"{name!r} is bound already, to {self._bindings[name]!r}; bind each name once")
        self._bindings[name] = function
        return function

    def _refuse_task_function(self, name: str | TaskFunction[..., Any], verb: str) -> None:
        """Raise ValueError for a decorated function or its name, as its tasks contain arguments instead of data."""
        function = name if isinstance(name, TaskFunction) else self._bindings.get(name)
        if isinstance(function, TaskFunction):
            call = (
                f"{function.parameters.name}.submit(…)"
                if verb == "push"
                else f"register({function.parameters.name}, …)"
            )
            raise ValueError(f"{function.type!r} is the type of a decorated function; write {call}")

    def _stop_at_exit(self) -> None:
        """Wait for running handlers, because the interpreter does not wait for daemon threads."""
        if os.getpid() == self._pid and self._threads is not None:
            self._threads.stop(_EXIT_TIMEOUT, is_exiting=True)


def _arguments(
    function: TaskFunction[..., Any], data: object, retry: bool, retry_timeout: float | None
) -> dict[str, Any]:
    name = function.parameters.name
    if retry or retry_timeout is not None:
        raise ValueError(f"{name}: {_NO_RETRY}")
    if data is not None and not isinstance(data, Mapping):
        raise ValueError(f"data must be a mapping of the arguments of {name}, got {shown(data)}")
    return dict(function.new_task(**(data or {})).data)


def create_scheduler(  # noqa: PLR0913 – all are keywords
    url: str,
    *,
    prefix: str = "_schedule_mq:",
    poll_interval: float = 1.0,
    concurrency: int = 4,
    timezone: str = "UTC",
    retention_time: float = 300.0,
    misfire_grace_time: float = 5.0,
    tls: Mapping[str, Any] | None = None,
    pooler: str = "auto",
    on_late: str | Sequence[str] | Mapping[str, Any] | None = None,
    on_failure: str | Sequence[str] | Mapping[str, Any] | None = None,
    on_recovered: str | Sequence[str] | Mapping[str, Any] | None = None,
    alert_interval: float = 10.0,
    events: Mapping[str, Any] | None = None,
    healthchecks: str | Mapping[str, Any] | None = None,
) -> Scheduler:
    """Return a scheduler on the database at `url`. Opens no connection.

    - `prefix`: begins the table names. Schedulers that share a database need different prefixes.
    - `concurrency`: how many handlers this instance runs at a time.
    - `timezone`: the time zone of registrations without their own.
    - `retention_time`: how many seconds finished tasks are kept.
    - `misfire_grace_time`: seconds. When an instance starts, it looks at the occurrences that were due while no
      instance ran. These occurrences run if the oldest of them is less late than `misfire_grace_time`, else they are
      skipped.
    - `poll_interval`: seconds between polls, for databases that cannot wake a waiting process.
    - `tls`, `pooler`, `on_late`, `on_failure`, `on_recovered`, `alert_interval`, `events`, `healthchecks`: the same as
      in the configuration of a daemon.

    Raises:
        ValueError: `poll_interval`, `concurrency` or `misfire_grace_time` is not valid.
        ConfigError: another value is not valid.
    """
    reports = {
        "on_late": on_late,
        "on_failure": on_failure,
        "on_recovered": on_recovered,
        "alert_interval": alert_interval,
        "events": events,
        "healthchecks": healthchecks,
    }
    settings = scheduler_settings(url, prefix, timezone, tls, retention_time, pooler, **reports)
    open_scheduler_stores(settings).close()  # reports a bad URL here instead of in the first push
    check_positive("poll_interval", poll_interval)
    check_wait("misfire_grace_time", misfire_grace_time)
    if type(concurrency) is not int or not 1 <= concurrency <= 1000:
        raise ValueError(f"concurrency must be a number of threads from 1 to 1000, got {shown(concurrency)}")
    return Scheduler(settings, poll_interval, concurrency, misfire_grace_time)

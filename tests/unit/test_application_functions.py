"""Decorated functions are handlers: returning finishes, raising retries, coroutines have a loop that stays."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import re
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from psched.application import App, Handler
from psched.errors import ConfigError, ImmediateProcessStopError, PreemptedError
from psched.task import Task
from tests.unit.ledger import Ledger

_PATIENCE = 10.0


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def app() -> Iterator[App]:
    app = App()
    yield app
    app.close()


def handler(app: App, task: Task) -> Handler:
    factory = app.route(task.type)
    assert factory is not None
    return factory(task)


def run(app: App, ledger: Ledger, type_: str = "type1") -> None:
    handler(app, ledger.task(type_)).run()


def test_returning_finishes(app: App, ledger: Ledger) -> None:
    @app.task("type1")
    def handle(task: Task) -> str:
        return task.key

    run(app, ledger)
    assert ledger.entries == [("finished",)]


def test_raising_retries_after_the_wait_of_the_task_and_logs_once(
    app: App, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task("type1", retry_wait=0)
    def handle(task: Task) -> None:
        raise ValueError("no luck")

    run(app, ledger)
    assert ledger.entries == [("retried", 0, "ValueError('no luck')")]
    assert [record.exc_info is not None for record in caplog.records] == [True]


def test_without_a_wait_of_its_own_the_configured_one_is_taken(app: App, ledger: Ledger) -> None:
    app.task("type1")(lambda task: 1 / 0)
    run(app, ledger)
    assert [entry[:2] for entry in ledger.entries] == [("retried", None)]


@pytest.mark.parametrize(
    ("verb", "entry"),
    [
        (Task.finish, ("finished",)),
        (lambda task: task.retry(5), ("retried", 5, None)),
        (Task.release, ("released",)),
    ],
)
def test_what_the_function_settles_itself_stays(
    verb: Any, entry: Any, app: App, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    app.task("type1")(verb)
    run(app, ledger)
    assert ledger.entries == [entry]
    assert caplog.records == []


def test_finish_false_leaves_settling_to_the_function(app: App, ledger: Ledger) -> None:
    app.task("type1", finish=False)(lambda task: None)
    run(app, ledger)
    assert ledger.entries == []


def test_a_lost_lease_passes_through(app: App, ledger: Ledger) -> None:
    app.task("type1")(Task.heartbeat)
    ledger.preempted = True
    with pytest.raises(PreemptedError):
        run(app, ledger)


def test_a_function_may_serve_several_types_and_stays_a_function(app: App, ledger: Ledger) -> None:
    @app.task("type1")
    @app.task(re.compile("^other-"))
    def handle(task: Task) -> str:
        return f"ran {task.type}"

    run(app, ledger)
    run(app, ledger, "other-7")
    assert ledger.entries == [("finished",), ("finished",)]
    assert handle(ledger.task()) == "ran type1"
    assert app.route("another-7") is None


def test_a_coroutine_is_awaited_before_the_task_is_finished(app: App, ledger: Ledger) -> None:
    seen: list[int] = []

    @app.task("type1")
    async def handle(task: Task) -> None:
        await asyncio.sleep(0)
        seen.append(len(ledger.entries))

    run(app, ledger)
    assert seen == [0]
    assert ledger.entries == [("finished",)]


def test_an_error_in_a_coroutine_retries(app: App, ledger: Ledger) -> None:
    @app.task("type1", retry_wait=4)
    async def handle(task: Task) -> None:
        await asyncio.sleep(0)
        raise ValueError("no luck")

    run(app, ledger)
    assert ledger.entries == [("retried", 4, "ValueError('no luck')")]


def test_a_coroutine_that_cancels_itself_has_failed(app: App, ledger: Ledger) -> None:
    @app.task("type1", retry_wait=4)
    async def handle(task: Task) -> None:
        raise asyncio.CancelledError

    run(app, ledger)
    assert ledger.entries == [("retried", 4, "RuntimeError('the handler was cancelled from within')")]


def test_the_loop_stays_from_task_to_task_and_the_context_does_not(app: App, ledger: Ledger) -> None:
    loops: list[asyncio.AbstractEventLoop] = []
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)
    values: list[int] = []

    @app.task("type1")
    async def handle(task: Task) -> None:
        loops.append(asyncio.get_running_loop())
        values.append(variable.get())
        variable.set(1)

    run(app, ledger)
    run(app, ledger)
    assert loops[0] is loops[1]
    assert values == [0, 0]


def test_each_thread_has_a_loop_of_its_own(app: App, ledger: Ledger) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    @app.task("type1")
    async def handle(task: Task) -> None:
        loops.append(asyncio.get_running_loop())

    def work() -> None:
        run(app, ledger)
        app.close()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(_PATIENCE)
    run(app, ledger)
    assert loops[0] is not loops[1]
    assert [loop.is_closed() for loop in loops] == [True, False]


def test_closing_cancels_what_is_left_on_the_loop(app: App, ledger: Ledger) -> None:
    ended: list[str] = []

    async def background() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("background")

    @app.task("type1")
    async def handle(task: Task) -> None:
        task.data["background"] = asyncio.create_task(background())
        await asyncio.sleep(0)

    run(app, ledger)
    assert ended == []
    app.close()
    assert ended == ["background"]
    app.close()


def told_to_stop(running: Handler, task: Task) -> None:
    """Do as the daemon does."""
    task.stop_reason = ImmediateProcessStopError()
    running.kill(task.stop_reason)


def test_kill_cancels_what_is_awaited_and_leaves_the_task_to_the_daemon(app: App, ledger: Ledger) -> None:
    started = threading.Event()
    tidied: list[str] = []

    @app.task("type1")
    async def handle(task: Task) -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            tidied.append(type(task.stop_reason).__name__)

    task = ledger.task()
    running = handler(app, task)

    def kill() -> None:
        assert started.wait(_PATIENCE)
        told_to_stop(running, task)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(asyncio.CancelledError):
        running.run()
    killer.join(_PATIENCE)
    assert tidied == ["ImmediateProcessStopError"]
    assert ledger.entries == []


def test_a_kill_before_the_run_cancels_at_the_first_await(app: App, ledger: Ledger) -> None:
    @app.task("type1")
    async def handle(task: Task) -> None:
        await asyncio.Event().wait()

    task = ledger.task()
    running = handler(app, task)
    told_to_stop(running, task)
    with pytest.raises(asyncio.CancelledError):
        running.run()
    assert ledger.entries == []


def test_a_coroutine_that_completes_all_the_same_is_finished(app: App, ledger: Ledger) -> None:
    @app.task("type1")
    async def handle(task: Task) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    task = ledger.task()
    running = handler(app, task)
    told_to_stop(running, task)
    running.run()
    assert ledger.entries == [("finished",)]


def test_a_kill_after_the_run_harms_nobody(app: App, ledger: Ledger) -> None:
    @app.task("type1")
    async def handle(task: Task) -> None:
        await asyncio.sleep(0)

    task = ledger.task()
    running = handler(app, task)
    running.run()
    running.kill(ImmediateProcessStopError())
    run(app, ledger)
    assert ledger.entries == [("finished",), ("finished",)]


def test_a_plain_function_sees_why_it_should_stop(app: App, ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    @app.task("type1")
    def handle(task: Task) -> None:
        if task.stop_reason is not None:
            raise task.stop_reason

    task = ledger.task()
    running = handler(app, task)
    told_to_stop(running, task)
    running.run()
    assert ledger.entries == []
    assert [record.levelname for record in caplog.records] == ["INFO"]


def generator(task: Task) -> Iterator[int]:
    yield 1


async def async_generator(task: Task) -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("function", [generator, async_generator])
def test_a_generator_is_refused(function: Any, app: App) -> None:
    with pytest.raises(ConfigError, match="is a generator, which would never run"):
        app.task("type1")(function)


@pytest.mark.parametrize("pattern", ["type1", re.compile("^t")])
def test_a_second_handler_of_the_same_type_is_refused(pattern: Any, app: App) -> None:
    app.task(pattern)(Task.finish)
    with pytest.raises(ConfigError, match="is handled twice: by Task.finish and by generator"):
        app.task(pattern)(generator)


@pytest.mark.parametrize("pattern", [None, 7, "", re.compile(b"a")])
def test_a_type_is_text_or_a_compiled_expression(pattern: Any, app: App) -> None:
    with pytest.raises(ConfigError, match="a task type must be"):
        app.task(pattern)


def test_a_decorator_without_its_type_says_what_to_write(app: App) -> None:
    with pytest.raises(ConfigError, match=r"generator is decorated with @app.task; write @app.task\('type'\)"):
        app.task(generator)  # type: ignore[arg-type]


@pytest.mark.parametrize("wait", [-1, float("nan")])
def test_a_wait_below_zero_is_refused(wait: float, app: App) -> None:
    with pytest.raises(ConfigError, match="retry_wait of 'type1' must be 0 or more seconds"):
        app.task("type1", retry_wait=wait)


def test_an_app_without_tasks_fails_the_check(app: App) -> None:
    with pytest.raises(ConfigError, match="the App handles no task"):
        app.check()

"""Coroutines as handlers: they share a lasting event loop, and a stop cancels what they await."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading

import pytest

from psched.application import App, Handler
from psched.errors import ImmediateProcessStopError
from psched.task import Task
from tests.unit.fake_task import Ledger
from tests.unit.handlers import handler, run

_PATIENCE = 10.0


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
    assert ledger.entries == [
        ("retried", 4, "RuntimeError('the handler raised CancelledError, but psched did not cancel it')")
    ]


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
    """Stop a handler as the daemon does."""
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


def test_a_kill_after_the_run_has_no_effect(app: App, ledger: Ledger) -> None:
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

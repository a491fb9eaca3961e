"""Decorated functions as handlers: a return finishes the task, an error retries it, coroutines share an event loop."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest

from psched.application import App
from psched.errors import ConfigError, PreemptedError
from psched.task import Task
from tests.unit.fake_task import Ledger
from tests.unit.handlers import run

_PATIENCE = 10.0


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
        (lambda task: task.finish(), ("finished",)),
        (lambda task: task.retry(5), ("retried", 5, None)),
        (lambda task: task.release(), ("released",)),
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
    app.task("type1")(lambda task: task.heartbeat())
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


def generator(task: Task) -> Iterator[int]:
    yield 1


async def async_generator(task: Task) -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("function", [generator, async_generator])
def test_a_generator_is_refused(function: Any, app: App) -> None:
    with pytest.raises(ConfigError, match="is a generator, which would never run"):
        app.task("type1")(function)


@pytest.mark.parametrize("function", [lambda *, task: None, lambda region, task: None])
def test_a_function_that_takes_the_task_but_not_first_is_refused(function: Any, app: App) -> None:
    with pytest.raises(ConfigError, match=r"must take task first, as in: def handler\(task, region\)"):
        app.task("type1")(function)
    with pytest.raises(ConfigError, match="handles no task"):
        app.check()


@pytest.mark.parametrize("function", [print, lambda task, more=1: None, partial(lambda name, task: None, "name"), dict])
def test_any_function_that_can_be_called_with_a_task_is_a_handler(function: Any, app: App) -> None:
    assert app.task("type1")(function).function is function


def test_a_function_in_c_gets_the_task(app: App, ledger: Ledger) -> None:
    seen: list[Task] = []
    app.task("type1")(seen.append)
    run(app, ledger)
    assert [task.key for task in seen] == ["key1"]


def first(task: Task) -> None:
    """A handler."""


def second(task: Task) -> None:
    """Another handler."""


@pytest.mark.parametrize("pattern", ["type1", re.compile("^t")])
def test_a_second_handler_of_the_same_type_is_refused(pattern: Any, app: App) -> None:
    app.task(pattern)(first)
    with pytest.raises(ConfigError, match="is handled twice: by first and by second"):
        app.task(pattern)(second)


@pytest.mark.parametrize("pattern", [7, "", re.compile(b"a")])
def test_a_type_is_text_or_a_compiled_expression(pattern: Any, app: App) -> None:
    with pytest.raises(ConfigError, match="a task type must be"):
        app.task(pattern)


@pytest.mark.parametrize("wait", [-1, float("nan")])
def test_a_wait_below_zero_is_refused(wait: float, app: App) -> None:
    with pytest.raises(ConfigError, match="retry_wait of 'type1' must be a number of seconds from 0 to 1000000000"):
        app.task("type1", retry_wait=wait)


def test_an_option_that_is_neither_true_nor_false_is_refused(app: App) -> None:
    with pytest.raises(ConfigError, match="store_result of 'type1' must be True, False or None, got 'no'"):
        app.task("type1", store_result="no")  # type: ignore[call-overload]


def test_an_app_without_tasks_fails_the_check(app: App) -> None:
    with pytest.raises(ConfigError, match="the App handles no task"):
        app.check()

"""Assertions about the tasks that a test has submitted to `psched_queue`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from psched.application.task_function import Submission, TaskFunction
from psched.errors import ConfigError
from psched.model import TaskRow
from psched.queue.queue import Queue

Wanted = TaskFunction[..., Any] | Submission[..., Any] | str
"""The tasks that an assertion looks for: a task function, the result of its `using`, or a type."""

_OPTIONS = ("key", "user", "run_at", "priority", "max_running", "max_attempts", "headers")
"""Options of `using` that a task keeps under the same name."""
_MOST = 10
"""The maximum number of submitted tasks that are shown."""

queue: Queue | None = None
"""The queue of the running test, set by the fixture psched_queue."""


def assert_submitted(task: Wanted, /, *args: Any, **kwargs: Any) -> TaskRow:
    """Return the task that the test has submitted with these arguments.

    An argument that is left out may have any value.

    `task`: a task function (`report`), a task function with options that must match (`report.using(user="alice")`), or
    a type whose tasks have `kwargs` in their data. Tasks that have already run count, too.

    Raises:
        AssertionError: there is no such task, or there are several.
        TypeError: the function has no such parameter.
    """
    found = _submitted(task, args, kwargs)
    if len(found) != 1:
        count = "no task" if not found else f"{len(found)} tasks, not one,"
        rows = found or list(_queue().list())
        shown = "" if found else "; the test submitted " + ("these:" if rows else "none")
        raise AssertionError(
            f"{count} submitted as {_call(task, args, kwargs)}{shown}{_lines(rows, task, args, kwargs)}"
        )
    return found[0]


def assert_not_submitted(task: Wanted, /, *args: Any, **kwargs: Any) -> None:
    """Raise AssertionError if the test has submitted a task with these arguments; see `assert_submitted`.

    Raises:
        AssertionError: there is such a task.
        TypeError: the function has no such parameter.
    """
    found = _submitted(task, args, kwargs)
    if found:
        raise AssertionError(f"a task was submitted as {_call(task, args, kwargs)}:{_lines(found, task, args, kwargs)}")


def _queue() -> Queue:
    if queue is None:
        raise ConfigError("assert_submitted needs the fixture psched_queue; add it to the test")
    return queue


def _submitted(task: Wanted, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[TaskRow]:
    type_ = _type(task)
    wanted = _wanted(task, args, kwargs)
    return [row for row in _queue().list(type=type_) if not _differences(row, wanted)]


def _type(task: Wanted) -> str:
    function = task.function if isinstance(task, Submission) else task
    type_ = function.type if isinstance(function, TaskFunction) else function
    if not isinstance(type_, str):
        raise ConfigError(f"assert_submitted: expected a task function or a type, got {task!r}")
    return type_


def _wanted(task: Wanted, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a row must have: options by their names, arguments in `data`."""
    if isinstance(task, str):
        if args:
            raise TypeError(
                "assert_submitted: a type takes keyword arguments only; name them, or give the task function instead"
            )
        return {"data": dict(kwargs)}
    submission = task if isinstance(task, Submission) else Submission(task)
    given = {name: value for name in _OPTIONS if (value := getattr(submission, name)) is not None}
    when = given.get("run_at")
    if isinstance(when, datetime):
        given["run_at"] = when.timestamp()
    return {**given, "data": submission.function.parameters.stored(args, kwargs, partly=True)}


def _differences(row: TaskRow, wanted: Mapping[str, Any]) -> list[str]:
    """Return each name whose value in `row` differs from `wanted`, with both values."""
    data: Mapping[str, Any] = wanted["data"]
    pairs = [
        (name, row.data.get(name, "nothing"), value) for name, value in data.items() if row.data.get(name) != value
    ]
    pairs += [
        (name, getattr(row, name), value)
        for name, value in wanted.items()
        if name != "data" and getattr(row, name) != value
    ]
    return [f"{name} is {found!r}, not {value!r}" for name, found, value in pairs]


def _call(task: Wanted, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    given = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
    options = {} if not isinstance(task, Submission) else {name: getattr(task, name) for name in _OPTIONS}
    using = ", ".join(f"{name}={value!r}" for name, value in options.items() if value is not None)
    return f"{_type(task)}({', '.join(given)})" + (f" using {using}" if using else "")


def _lines(rows: Iterable[TaskRow], task: Wanted, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    rows = list(rows)
    wanted, type_ = _wanted(task, args, kwargs), _type(task)
    lines = []
    for row in sorted(rows, key=lambda row: row.type != type_)[:_MOST]:
        data = ", ".join(f"{name}={value!r}" for name, value in row.data.items())
        why = _differences(row, wanted) if row.type == type_ else []
        lines.append(f"\n  {row.type}({data}), key {row.key}, {row.status}{': ' if why else ''}{'; '.join(why)}")
    if len(rows) > _MOST:
        lines.append(f"\n  … {len(rows) - _MOST} more")
    return "".join(lines)

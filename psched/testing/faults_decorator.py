"""`@faults`: tests whether a handler is idempotent, by injecting faults. See docs/testing.md."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import pytest

from psched.errors import ConfigError

Test = TypeVar("Test", bound=Callable[..., None])

MARK = "psched_faults"
"""The mark of a test that runs under faults."""

running: ContextVar[bool] = ContextVar("psched_faults_running", default=False)
"""Whether the plugin is now calling the test function."""


@dataclass(frozen=True, slots=True)
class FaultOptions:
    """The arguments of `faults`. `state` and `reset` get fixtures as arguments, by the names of their parameters."""

    state: Callable[..., Any]
    reset: Callable[..., object] | None
    seeds: tuple[int, ...]


def faults(
    *, state: Callable[..., Any], reset: Callable[..., object] | None = None, seeds: int | Sequence[int] = 50
) -> Callable[[Test], Test]:
    """Run the tasks of a test function without faults, then with faults, and compare the results.

    The test function prepares data and submits tasks to `psched_queue`. The handlers of these tasks run in forked
    processes, as in a daemon: first without faults, then with each single fault, then with random sequences of faults.
    A fault is SIGKILL right before or right after a commit of a handler, a second delivery of a task, or a lease lost
    while the handler runs. After a fault, every task runs again until it is done. If the tasks leave a different state
    with a fault than without, their handler is not idempotent. Then the test fails, and shows the fault, the commit and
    the difference.

    `state` returns the state that the handlers should leave. It must read this state from where other processes wrote
    it: rows, files, `psched_effects`. `reset` undoes that state. It is called before each run of the test function, and
    at the end. The parameters of both are fixtures. `seeds`: how many random sequences of faults to try after the
    single faults, or a list of the seeds of these sequences (`seeds=[17]`).

    Raises:
        ConfigError: an argument cannot be used.
    """
    given: object = seeds
    numbers = range(given) if isinstance(given, int) and not isinstance(given, bool) and given >= 0 else given
    if (
        isinstance(numbers, str)
        or not isinstance(numbers, Sequence)
        or not all(isinstance(each, int) for each in numbers)
    ):
        raise ConfigError(
            f"faults: seeds must be a whole number, 0 or more, or a list of seeds like [17], got {seeds!r}"
        )
    for name, function in (("state", state), ("reset", reset)):
        if not callable(function) and (name == "state" or function is not None):
            raise ConfigError(f"faults: {name} must be a function, got {function!r}")
        if function is not None and inspect.iscoroutinefunction(function):
            raise ConfigError(f"faults: {name} must be a plain function, not `async def`")
    options = FaultOptions(state, reset, tuple(numbers))

    def decorate(test: Test) -> Test:
        given: object = test
        if not inspect.isfunction(given) or inspect.iscoroutinefunction(given) or inspect.isgeneratorfunction(given):
            raise ConfigError(f"faults: decorate a plain test function, not {given!r}")

        @functools.wraps(test)
        def only_under_faults(*args: Any, **kwargs: Any) -> None:
            if not running.get():
                raise ConfigError(
                    f"psched's pytest plugin must run {test.__qualname__} under faults, but it did not; is the plugin "
                    "blocked (-p no:psched), or is this a method of a unittest.TestCase?"
                )
            test(*args, **kwargs)

        fixtures = dict.fromkeys(name for each in (state, reset) if each is not None for name in parameters(each))
        marked: Any = pytest.mark.usefixtures("psched_queue", "tmp_path", *fixtures)(only_under_faults)
        return getattr(pytest.mark, MARK)(options)(marked)  # type: ignore[no-any-return]

    return decorate


def parameters(function: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters without a default. They are fixtures."""
    return [each.name for each in inspect.signature(function).parameters.values() if each.default is each.empty]


Kind = Literal["kill", "freeze"]
Place = Literal["before", "after", "returned"]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in one run of a handler: before or after its commit number `commit`, or when the handler has returned.

    `kind`: `kill` (SIGKILL), or `freeze` (SIGSTOP until the lease has ended and another worker has run the task).
    """

    kind: Kind
    place: Place
    commit: int = 0

    def describe(self, commits: Sequence[str]) -> str:
        """Describe the fault in words. `commits`: the places of the run's commits in the source."""
        if self.place == "returned":
            return "delivered twice" if self.kind == "kill" else "the lease lost after the handler had returned"
        verb = "killed right" if self.kind == "kill" else "the lease lost"
        where = f" ({commits[self.commit - 1]})" if self.commit <= len(commits) else ""
        return f"{verb} {self.place} commit {self.commit} of {max(self.commit, len(commits))}{where}"


def single_faults(commits: int) -> list[Fault]:
    """Return the faults that are tried one by one in a run with this many commits."""
    at_commits = [
        Fault(kind, place, commit)
        for kind in ("kill", "freeze")
        for commit in range(1, commits + 1)
        for place in ("before", "after")
    ]
    return [Fault("kill", "returned"), *at_commits, *([] if commits else [Fault("freeze", "returned")])]

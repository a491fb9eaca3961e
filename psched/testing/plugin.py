"""The pytest plugin: fixtures for the tests of applications. See docs/testing.md.

pytest imports this module in every run in which psched is installed. So all other modules of psched are imported by the
fixtures, when a test uses a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from psched.queue.queue import Queue
    from psched.schedules.collection import ScheduleCollection
    from psched.testing.database_clock import DatabaseClock
    from psched.testing.drain import Drain
    from psched.testing.effects_file import Effects
    from psched.testing.open_tables import Config, OpenTables

_FAULTS = "psched_faults"
"""The mark of tests with `@psched.testing.faults`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("psched_app", "the Apps of psched whose tasks the tests run, as module:NAME", type="args", default=[])


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{_FAULTS}(options): set by @psched.testing.faults")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test function that has `@psched.testing.faults`."""
    mark = pyfuncitem.get_closest_marker(_FAULTS)
    if mark is None:
        return None
    from psched.testing.fault_runs import FaultTest

    fixtures: dict[str, Any] = pyfuncitem.funcargs
    arguments = {name: fixtures[name] for name in pyfuncitem._fixtureinfo.argnames}
    tables, clock, folder = (fixtures[name] for name in ("_psched_tables", "psched_clock", "tmp_path"))
    FaultTest(mark.args[0], partial(pyfuncitem.obj, **arguments), fixtures, tables, clock, folder).run()
    return True


@pytest.fixture
def psched_config(request: pytest.FixtureRequest) -> Config:
    """The configuration of psched_queue and psched_schedules: SQLite in memory, or a file for tests with faults.

    Override this fixture to use another database.
    """
    from psched.testing.open_tables import config_of

    if request.node.get_closest_marker(_FAULTS) is None:
        return config_of("sqlite://")
    return config_of(f"sqlite:///{request.getfixturevalue('tmp_path') / 'psched.db'}")


@pytest.fixture
def psched_app(request: pytest.FixtureRequest) -> Any:
    """The App whose tasks the tests run, its name (`module:NAME`), or several of them.

    None: all Apps in loaded modules. The default is the option `psched_app` of pytest's configuration. Override this
    fixture to name an App in Python.
    """
    return request.config.getini("psched_app") or None


@pytest.fixture
def _psched_tables(psched_config: Config, psched_app: Any, psched_clock: DatabaseClock) -> Iterator[OpenTables]:
    from psched.testing.open_tables import OpenTables

    is_one = psched_app is not None and not isinstance(psched_app, list | tuple)
    tables = OpenTables(psched_config, [psched_app] if is_one else psched_app)
    psched_clock.refusal = tables.clock_refusal
    yield tables
    tables.close()


@pytest.fixture
def psched_queue(_psched_tables: OpenTables, monkeypatch: pytest.MonkeyPatch) -> Queue:
    """An empty queue, without a daemon. All task functions submit to it. Its rows are deleted after the test."""
    from psched.application.default_queue import AppQueue
    from psched.testing import submitted

    queue = _psched_tables.queue
    monkeypatch.setattr(AppQueue, "own", property(lambda _: queue))  # replaces the queue that each App has opened
    monkeypatch.setattr(submitted, "queue", queue)
    return queue


@pytest.fixture
def psched_schedules(_psched_tables: OpenTables) -> ScheduleCollection:
    """An empty collection of schedules, without a daemon. Its rows are deleted after the test."""
    return _psched_tables.schedules


@pytest.fixture
def psched_clock() -> Iterator[DatabaseClock]:
    """The database's clock as psched reads it. It shows the real time until `psched_clock.travel_to(…)`."""
    from psched.testing.database_clock import DatabaseClock

    clock = DatabaseClock()
    clock.start()
    yield clock
    clock.stop()


@pytest.fixture
def psched_drain(
    psched_queue: Queue, _psched_tables: OpenTables, psched_clock: DatabaseClock, monkeypatch: pytest.MonkeyPatch
) -> Drain:
    """`psched_drain()` runs what is due now. `psched_drain(until=…)` runs everything that is due until a time."""
    from psched.testing.drain import Drain

    drain = Drain(_psched_tables, psched_clock)
    results = psched_queue._results
    monkeypatch.setattr(results, "wait_for", drain.wait_at_once(results.wait_for))
    return drain


@pytest.fixture
def psched_inline(psched_queue: Queue, psched_drain: Drain, monkeypatch: pytest.MonkeyPatch) -> Queue:
    """Like psched_queue, but each submit runs the due tasks before it returns, and raises errors of handlers.

    Tasks that a handler submits run after the handler has returned, but before the test's own submit returns.
    """
    monkeypatch.setattr(psched_queue.store, "submit", psched_drain.submit_at_once(psched_queue.store.submit))
    return psched_queue


@pytest.fixture
def psched_effects(tmp_path: Path) -> Effects:
    """A list in a file for effects outside of databases, such as emails. It survives processes that are killed."""
    from psched.testing.effects_file import Effects

    return Effects(tmp_path / "psched_effects.jsonl")

"""Decorated functions submit calls of themselves: with which key, type, queue and options."""

from __future__ import annotations

import asyncio
import functools
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.exc import OperationalError

import psched
from faultlab.ports import free_port
from psched import App, Queue
from psched.errors import ConfigError
from psched.model import TaskRow
from psched.queue.queue import open_queue
from tests.unit.fake_task import Ledger
from tests.unit.handlers import handler
from tests.unit.in_memory_queue import take

app_of_module = App()


@app_of_module.task(priority=3)
def report(region: str, *, day: date | None = None) -> int:
    """Make a report."""
    return len(region) + (0 if day is None else day.day)


@pytest.fixture(autouse=True)
def _configured(queue: Queue) -> Iterator[None]:
    """Let all apps submit to `queue`."""
    psched.configure(queue)
    yield
    psched.configure(None)


def test_a_task_function_is_still_the_function() -> None:
    assert report("abc", day=date(2026, 11, 23)) == 26
    assert report.__name__ == "report"
    assert report.__doc__ == "Make a report."
    assert pickle.loads(pickle.dumps(report)) is report  # noqa: S301


def test_a_submitted_call_has_a_new_key_and_the_type_and_priority_of_its_function() -> None:
    first, second = report.submit("x", day=date(2026, 11, 23)), report.submit(region="y")
    row = first.metadata()
    assert (row.type, row.data, row.priority) == (f"{__name__}.report", {"region": "x", "day": "2026-11-23"}, 3)
    assert [UUID(queued.key).version for queued in (first, second)] == [7, 7]
    assert first.key < second.key or first.key[:13] == second.key[:13], "keys do not begin with the time"


def test_options_of_one_submit(queue: Queue) -> None:
    moment = datetime(2027, 1, 1, tzinfo=UTC)
    using = report.using(key="x-1", user="alice", run_at=moment, priority=5, max_running=2, max_attempts=7)
    row = using.submit("x").metadata()
    assert isinstance(row, TaskRow)
    assert (row.key, row.user, row.run_at, row.priority) == ("x-1", "alice", moment.timestamp(), 5)
    assert (row.max_running, row.max_attempts) == (2, 7)
    with pytest.raises(psched.AlreadyExistsError, match="'x-1'"):
        using.submit("x")


@pytest.mark.parametrize("delay", [300, "5m", timedelta(minutes=5)])
def test_a_delay_counts_from_now_on_the_databases_clock(delay: Any, queue: Queue, monkeypatch: Any) -> None:
    monkeypatch.setattr(queue.store, "now", lambda: 1000.0)
    for queued in (
        report.using(delay=delay).submit("x"),
        asyncio.run(report.using(delay=delay).asubmit("x")),
        *report.using(delay=delay).submit_many([{"region": "x"}]),
    ):
        assert queued.metadata().run_at == 1300
    assert report.using(delay=delay).new_task("x").run_at == 1300


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delay": "soon"}, r"delay: expected seconds or a duration \(90s, 5m, 2h\) ≥ 0, got 'soon'"),
        ({"delay": -1}, "delay: expected seconds"),
        ({"delay": timedelta(minutes=-5)}, "delay: expected seconds"),
        (
            {"run_at": datetime(2027, 1, 1, tzinfo=UTC).replace(tzinfo=None)},
            "run_at has no time zone: 2027-01-01 00:00:00",
        ),
        ({"run_at": "2027-01-01"}, "run_at must be a datetime with a time zone, or unix seconds, got '2027-01-01'"),
        ({"run_at": True}, "run_at must be a datetime with a time zone, or unix seconds, got True"),
        ({"run_at": 1, "delay": 1}, "run_at and delay both define when the task runs; leave out one of them"),
    ],
)
def test_an_unusable_time_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        report.using(**options)


def test_many_calls_become_tasks_in_their_order(queue: Queue) -> None:
    queued = report.using(user="alice").submit_many([{"region": "x"}, report.using(key="k").new_task("y")])
    assert [each.metadata().data["region"] for each in queued] == ["x", "y"]
    assert [each.metadata().user for each in queued] == ["alice", None]
    asyncio.run(report.asubmit_many([{"region": "z"}]))
    assert len(list(queue.list())) == 3


def test_a_task_of_many_that_exists_is_left_as_it_is(queue: Queue) -> None:
    queue.submit("k", "other")
    [queued] = report.submit_many([report.using(key="k").new_task("y")])
    assert queued.metadata().type == "other"


def test_what_is_no_call_of_the_function_is_refused_among_many(queue: Queue) -> None:
    with pytest.raises(ValueError, match="must be a mapping of arguments, or a result of new_task, got 'x'"):
        report.submit_many(["x"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"the task 'k' was not made by report\.new_task"):
        report.submit_many([psched.NewTask("k", "another")])
    with pytest.raises(ValueError, match="cannot share one key"):
        report.using(key="k").submit_many([{"region": "x"}])
    with pytest.raises(TypeError, match=r"report\(\): missing a required argument: 'region'"):
        report.submit_many([{"region": "x"}, {}])
    assert list(queue.list()) == []


def test_an_async_client_submits_too() -> None:
    queued = asyncio.run(report.asubmit("x"))
    assert queued.metadata().data == {"region": "x"}


def test_a_decorator_needs_no_parentheses(app: App, queue: Queue) -> None:
    @app.task
    def tick() -> None: ...

    tick.submit()
    assert [row.type for row in queue.list()] == [tick.type]
    assert app.routed_types() == (f"{__name__}.test_a_decorator_needs_no_parentheses.<locals>.tick",)


def test_an_expression_is_no_type_to_submit(app: App) -> None:
    with pytest.raises(ConfigError, match=r"handles the types that match '\^a'; submit with queue\.submit\(key, type"):
        app.task(re.compile("^a"))(lambda: None).submit()


def test_a_function_without_a_name_needs_a_type(app: App) -> None:
    with pytest.raises(ConfigError, match=r"has no name; give its tasks a type, as in @app\.task\('report'\)"):
        app.task()(functools.partial(print))
    app.task("named")(functools.partial(print))


def test_a_program_submits_the_types_that_a_worker_imports(tmp_path: Path) -> None:
    (tmp_path / "reports.py").write_text(
        "import psched\napp = psched.App()\n@app.task\ndef report(): ...\nif __name__ == '__main__': print(report.type)"
    )
    for command in (["reports.py"], ["-m", "reports"]):
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout == "reports.report\n"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"priority": 101}, "priority of 't' must be a whole number from -100 to 100, got 101"),
        ({"priority": True}, "priority of 't' must be a whole number"),
        ({"timeout": -1}, "timeout of 't' must be a number of seconds"),
        ({"timeout": 0}, "timeout of 't' must be more than 0 seconds"),
        ({"retry_wait": {"frist": 1}}, r"retry_wait: unknown key 'frist'.*did you mean 'first'"),
    ],
)
def test_an_option_that_cannot_be_kept_is_refused_at_the_decorator(app: App, option: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        app.task("t", **option)


def test_a_result_is_stored_if_the_function_says_so(app: App) -> None:
    def returns_none() -> None: ...
    def returns_number() -> int:
        return 1

    def says_nothing():  # type: ignore[no-untyped-def]
        return 1

    functions = (returns_none, returns_number, says_nothing)
    assert [app.task(f)(each).stores_result for f, each in zip("abc", functions, strict=True)] == [False, True, False]
    forced = [app.task(name, store_result=wish)(returns_none) for name, wish in (("d", True), ("e", False))]
    assert [each.stores_result for each in forced] == [True, False]


def test_a_result_comes_back_as_the_function_is_annotated(app: App, queue: Queue) -> None:
    @app.task
    def next_day(day: date) -> date:
        return day + timedelta(days=1)

    queued = next_day.submit(date(2026, 11, 23))
    handler(app, take(queue)).run()
    assert queued.result(timeout=0) == date(2026, 11, 24)
    assert queue[queued.key].result(timeout=0) == "2026-11-24"


def test_the_options_of_a_type_reach_its_handler(app: App, ledger: Ledger) -> None:
    wait = psched.backoff(10, maximum=600)
    app.task("type1", retry_wait=wait, max_attempts=5, timeout=60)(lambda: None)
    made: Any = handler(app, ledger.task())
    assert (made.retry_wait, made.max_attempts, made.timeout) == (wait, 5, 60)


def test_an_app_prefers_the_queue_that_it_has_opened(app: App, queue: Queue, tmp_path: Path) -> None:
    tick = app.task("tick")(lambda: None)
    with pytest.raises(ConfigError, match=r"psched queue init"):
        app.open(config_in(tmp_path))
    tick.submit()
    with new_queue(tmp_path), app.open(config_in(tmp_path)) as own:
        tick.using(key="own").submit()
        assert own["own"].exists()
    assert len(list(queue.list())) == 1


def test_the_configured_queue_comes_before_that_of_the_variable(
    app: App, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tick = app.task("tick")(lambda: None)
    named, given = tmp_path / "named", tmp_path / "given"
    for folder in (named, given):
        folder.mkdir()
    (named / "conf.yml").write_text("development: {type: rdb, url: 'sqlite:///psched.db'}")
    monkeypatch.setenv("PSCHED_CONFIG", str(named / "conf.yml"))
    with new_queue(named) as of_variable, new_queue(given) as of_config:
        tick.using(key="given as a queue").submit()
        psched.configure(None)
        tick.using(key="of the variable").submit()
        psched.configure(config_in(given))
        tick.using(key="configured").submit()
        assert [row.key for row in of_variable.list()] == ["of the variable"]
        assert [row.key for row in of_config.list()] == ["configured"]
        psched.configure(None)
    assert [row.key for row in queue.list()] == ["given as a queue"]


def test_without_a_queue_a_submit_says_what_to_do(app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    psched.configure(None)
    monkeypatch.delenv("PSCHED_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"no queue to submit to: the file 'etc/psched\.yml' does not exist"):
        app.task("tick")(lambda: None).submit()
    with pytest.raises(ConfigError, match="missing; expected rdb, redis or rdb_compat"):
        psched.configure({"url": "sqlite:///psched.db"})


@pytest.mark.parametrize(("name", "found"), [("", "is a folder, not a YAML file"), ("/none.yml", "does not exist")])
def test_a_file_that_psched_config_names_wrongly_is_named(
    name: str, found: str, app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    psched.configure(None)
    monkeypatch.setenv("PSCHED_CONFIG", f"{tmp_path}{name}")
    expected = f"no queue to submit to: the file that PSCHED_CONFIG names: '{tmp_path}{name}' {found}; call psched"
    with pytest.raises(ConfigError, match=expected):
        app.task("tick")(lambda: None).submit()


def test_a_server_that_is_down_is_named_beside_the_error_of_its_driver(app: App) -> None:
    port = free_port()
    with pytest.raises(OperationalError) as caught:
        app.open({"type": "rdb", "url": f"mysql+pymysql://root:secret@127.0.0.1:{port}/psched"})
    [note] = caught.value.__notes__
    assert note == (
        f"queue: the database mysql+pymysql://root:***@127.0.0.1:{port}/psched is not available; does it run, "
        "and is `url:` right?"
    )


@pytest.mark.parametrize("calls", [None, 5, "abc", {"region": "x"}])
def test_what_is_no_list_of_calls_is_refused(calls: Any, app: App, queue: Queue) -> None:
    function = app.task("tick")(lambda region: None)
    with pytest.raises(ValueError, match="submit_many takes a list of mappings of arguments, got"):
        function.submit_many(calls)
    if not isinstance(calls, str | dict):
        with pytest.raises(ValueError, match=r"submit_many takes a list of psched\.NewTask, got (None|5)"):
            queue.submit_many(calls)


def test_a_parameter_may_be_named_self(app: App, queue: Queue) -> None:
    @app.task("tick")
    def tick(self: int) -> int:
        return self

    assert tick(self=1) == 1
    keys = [tick.submit(self=2).key, tick.using(priority=1).submit(self=3).key, asyncio.run(tick.asubmit(self=4)).key]
    assert [queue[key].metadata().data["self"] for key in keys] == [2, 3, 4]
    assert tick.new_task(self=5).data == {"self": 5}


@pytest.mark.parametrize(("type_", "message"), [("a\0b", "NUL"), ("x" * 300, "has 300 characters, at most 255")])
def test_a_type_that_cannot_be_stored_is_refused_where_it_is_registered(type_: str, message: str, app: App) -> None:
    with pytest.raises(ConfigError, match=f"a task type .*{message}"):
        app.task(type_)


def config_in(folder: Path) -> dict[str, Any]:
    return {"type": "rdb", "url": f"sqlite:///{folder}/psched.db"}


def new_queue(folder: Path) -> Queue:
    """Return a queue in a new database file in `folder`."""
    section = psched.config.from_mapping(config_in(folder), reader="queue").queue
    assert section is not None
    queue = open_queue(section, "host/test/1")
    queue.store.create_tables()
    return queue

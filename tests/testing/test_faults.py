"""`@psched.testing.faults`: idempotent handlers pass. Others fail with the fault, the commit and the difference."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

import psched.testing
from psched import App, ConfigError
from psched.queue.queue import Queue
from psched.testing import DatabaseClock, Effects
from psched.testing.fault_runs import FaultTest
from psched.testing.faults_decorator import FaultOptions
from psched.testing.open_tables import Config, OpenTables, config_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
"""A test forks some hundred processes. The fork of a process with much memory takes several times as long."""

app = App()
_HERE = Path(__file__).name


class Shop:
    """The handlers' database, and a record of what they send. Handlers find this object after the fork."""

    path: str
    url: str
    engine: sa.Engine
    effects: Effects
    queue: Queue


@pytest.fixture
def psched_app() -> App:
    return app


@pytest.fixture
def psched_config(tmp_path: Path) -> Config:
    return config_of(f"sqlite:///{tmp_path / 'psched.db'}")


@pytest.fixture
def shop(tmp_path: Path, psched_effects: Effects, psched_queue: Queue) -> type[Shop]:
    Shop.path, Shop.effects, Shop.queue = str(tmp_path / "shop.db"), psched_effects, psched_queue
    Shop.url = f"sqlite:///{Shop.path}"
    with closing(connect()) as connection, connection:
        connection.executescript(
            "CREATE TABLE counter (n INTEGER); CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT);"
            "CREATE TABLE done (key TEXT PRIMARY KEY); CREATE TABLE runs (key TEXT); INSERT INTO counter VALUES (0);"
        )
    return Shop


def connect(**options: Any) -> sqlite3.Connection:
    return sqlite3.connect(Shop.path, **options)


def reset(shop: type[Shop]) -> None:
    with closing(connect()) as connection, connection:
        connection.executescript("UPDATE counter SET n = 0; DELETE FROM orders; DELETE FROM done; DELETE FROM runs")


def state(shop: type[Shop]) -> dict[str, Any]:
    with closing(connect()) as connection:
        return {
            "counter": connection.execute("SELECT n FROM counter").fetchall(),
            "orders": connection.execute("SELECT item FROM orders").fetchall(),
            "emails": list(shop.effects),
        }


# Handlers that may run twice.


@app.task("insert with key")
def insert_with_key(task: psched.Task) -> None:
    with closing(connect()) as connection, connection:
        if connection.execute("INSERT OR IGNORE INTO done VALUES (?)", (task.key,)).rowcount:
            connection.execute("UPDATE counter SET n = n + 1")
            connection.execute("INSERT INTO orders (item) VALUES ('book')")


@app.task("set")
def set_to_value(task: psched.Task) -> None:
    engine = sa.create_engine(Shop.url)
    with Session(engine) as session:
        session.execute(sa.text("UPDATE counter SET n = 5"))
        session.commit()
        session.execute(sa.text("DELETE FROM orders"))
        session.execute(sa.text("INSERT INTO orders (item) VALUES ('pen')"))
        session.commit()
    engine.dispose()


@app.task("finishes itself")
def finish_itself(task: psched.Task) -> None:
    insert_with_key(task)
    task.finish()


@app.task("workflow")
async def workflow(task: psched.Task) -> None:
    Shop.queue.submit_many([psched.NewTask(f"{task.key} {item}", "insert with key") for item in ("a", "b")])


# Handlers that may not.


@app.task("increment")
def increment(task: psched.Task) -> None:
    with closing(connect()) as connection, connection:
        connection.execute("UPDATE counter SET n = n + 1")


@app.task("insert without key")
def insert_without_key(task: psched.Task) -> None:
    engine = sa.create_engine(Shop.url)
    with engine.begin() as connection:
        connection.execute(sa.text("INSERT INTO orders (item) VALUES ('book')"))
    engine.dispose()


@app.task("email before commit")
def email_before_commit(task: psched.Task) -> None:
    with closing(connect()) as connection:
        if connection.execute("INSERT OR IGNORE INTO done VALUES (?)", (task.key,)).rowcount:
            Shop.effects.append("your order")
        connection.commit()


@app.task("two commits")
def two_commits(task: psched.Task) -> None:
    with closing(connect(isolation_level=None)) as connection:
        if connection.execute("INSERT OR IGNORE INTO done VALUES (?)", (task.key,)).rowcount:
            connection.execute("UPDATE counter SET n = n + 1")


@app.task("check, then act")
def check_then_act(task: psched.Task) -> None:
    with closing(connect()) as connection:
        if not connection.execute("SELECT 1 FROM done WHERE key = ?", (task.key,)).fetchone():
            connection.execute("INSERT OR IGNORE INTO done VALUES (?)", (task.key,))
            connection.execute("UPDATE counter SET n = n + 1")
        connection.commit()


@app.task("submit without key")
def submit_without_key(task: psched.Task) -> None:
    Shop.queue.submit(f"{task.key} {task.attempts}", "increment")


@app.task("refuse twice", retry_wait=1, max_attempts=4)
def refuse_twice(task: psched.Task) -> None:
    with closing(connect()) as connection, connection:
        connection.execute("INSERT INTO done VALUES (?)", (task.key,))
        connection.execute("UPDATE counter SET n = n + 1")


# Handlers with which faults prove nothing.


@app.task("in memory")
def in_memory(task: psched.Task) -> None:
    _memory.append(task.key)


_memory: list[str] = []


@app.task("random")
def random(task: psched.Task) -> None:
    Shop.effects.append(time.time_ns())


@app.task("broken")
def broken(task: psched.Task) -> None:
    raise ValueError("no such region")


@app.task("hung")
def hung(task: psched.Task) -> None:
    time.sleep(3600)


@app.task("left")
def left(task: psched.Task) -> None:
    os._exit(3)


Run = Callable[..., None]


@pytest.fixture
def run_faults(shop: type[Shop], _psched_tables: OpenTables, psched_clock: DatabaseClock, tmp_path: Path) -> Run:
    """A function that does what a test with `@faults` does.

    Its arguments: types of tasks, and the arguments of `faults`.
    """

    def run(
        *types: str,
        seeds: tuple[int, ...] = (),
        state: Callable[..., Any] = state,
        reset: Callable[..., object] | None = reset,
    ) -> None:
        options = FaultOptions(state, reset, seeds)
        fixtures = {"shop": shop, "effects": shop.effects}
        FaultTest(options, partial(submit, *types), fixtures, _psched_tables, psched_clock, tmp_path).run()

    def submit(*types: str) -> None:
        for type_ in types:
            Shop.queue.submit(f"key of {type_}", type_)

    return run


def failure(run: Run, *types: str, **options: Any) -> str:
    with pytest.raises(pytest.fail.Exception) as caught:
        run(*types, **options)
    return str(caught.value)


def line_of(function: Callable[..., Any], number: int) -> str:
    """Return a line of a handler as failures name it. `number`: the line, counted from the handler's `def`."""
    code: Any = getattr(function, "function", function).__code__
    return f"{_HERE}:{code.co_firstlineno + 1 + number}:"


@pytest.mark.in_suite_on("insert with key", "workflow")
@pytest.mark.parametrize("type_", ["insert with key", "set", "finishes itself", "workflow"])
@psched.testing.faults(state=state, reset=reset, seeds=2)
def test_a_handler_that_may_run_twice_passes(psched_queue: Queue, type_: str) -> None:
    psched_queue.submit("key", type_)


@pytest.mark.parametrize(
    ("type_", "faults", "difference"),
    [
        ("increment", ["delivered twice", "killed right after commit 1 of 1", "the lease lost after commit 1 of 1"],
         ["-{'counter': [(1,)], 'emails': [], 'orders': []}", "+{'counter': [(2,)], 'emails': [], 'orders': []}"]),
        ("insert without key", ["delivered twice", "killed right after commit 1 of 1"], ["('book',), ('book',)"]),
        ("email before commit", ["killed right before commit 1 of 1"], ["['your order', 'your order']"]),
        ("two commits", ["right after commit 1 of 2", "right before commit 2 of 2"], ["+{'counter': [(0,)]"]),
        ("check, then act", ["the lease lost before commit 1 of 1"], ["+{'counter': [(2,)]"]),
        ("submit without key", ["delivered twice", "killed right after commit"], ["+{'counter': [(2,)]"]),
    ],
)  # fmt: skip
def test_a_handler_that_may_not_run_twice_fails_with_fault_and_difference(
    run_faults: Run, type_: str, faults: list[str], difference: list[str]
) -> None:
    message = failure(run_faults, type_)
    assert message.startswith("not idempotent: the tasks leave a different state with a fault than without")
    assert not [words for words in [*faults, *difference] if words not in message], message


def test_the_failure_names_the_line_of_the_commit_and_no_other_fault(run_faults: Run) -> None:
    message = failure(run_faults, "two commits")
    assert line_of(two_commits, 2) in message
    assert line_of(two_commits, 3) in message
    assert "delivered twice" not in message


def test_a_task_that_does_not_finish_under_a_fault_is_a_difference(run_faults: Run) -> None:
    message = failure(run_faults, "refuse twice")
    assert message.startswith("not idempotent: the tasks end differently with a fault than without")
    assert "task of type refuse twice is failed: IntegrityError('UNIQUE constraint failed: done.key')" in message


def test_faults_hit_each_of_several_tasks(run_faults: Run) -> None:
    message = failure(run_faults, "insert with key", "increment")
    assert "fault: delivered twice, task increment key of increment" in message
    assert "task insert with key key" not in message
    assert "run 1 of increment key of increment: did not end" in message
    assert "run 3 of increment key of increment: ran to its end" in message


def test_a_seed_fails_where_no_single_fault_does_and_can_be_repeated(run_faults: Run) -> None:
    seeds = tuple(range(20))
    message = failure(run_faults, "third time", seeds=seeds)
    assert "fault:" not in message
    seed = int(message.partition("seed ")[2].partition(" ")[0])
    assert f"repeat with: @psched.testing.faults(seeds=[{seed}], …)" in message
    assert "run 1 of third time key of third time: " in message
    assert failure(run_faults, "third time", seeds=(seed,)) == message
    run_faults("third time", seeds=seeds[:seed])


@app.task("third time")
def third_time(task: psched.Task) -> None:
    """A handler that may run twice, but not three times."""
    with closing(connect()) as connection, connection:
        connection.execute("INSERT INTO runs VALUES (?)", (task.key,))
        connection.execute("UPDATE counter SET n = (SELECT count(*) / 3 + 1 FROM runs)")


@pytest.mark.parametrize(
    ("type_", "options", "message"),
    [
        ("in memory", {}, "did not change the state, so no fault could change it; handlers run in forked processes"),
        ("random", {}, "two runs without faults left different states; state= must leave out values that differ"),
        (
            "increment",
            {"reset": None},
            "the state before the second run differs from the state before the first; restore it in reset=",
        ),
        ("broken", {}, "the run without faults: a task of type broken is waiting, not finished:\nValueError"),
        ("left", {}, "the run without faults: a task of type left is "),
        ("increment", {"state": lambda: (n for n in "ab")}, "state= returned <generator"),
    ],
)
def test_a_test_that_would_prove_nothing_fails(
    run_faults: Run, type_: str, options: dict[str, Any], message: str
) -> None:
    assert message in failure(run_faults, type_, **options)


def test_a_test_that_submits_nothing_fails(run_faults: Run) -> None:
    assert "submitted no task to psched_queue" in failure(run_faults)


def test_a_handler_that_hangs_fails_and_its_process_is_killed(run_faults: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psched.testing.fault_runs._HUNG", 0.5)
    assert "did not end within 0.5 s in its forked process" in failure(run_faults, "hung")


def test_a_task_without_handler_fails_with_the_remedy(run_faults: Run) -> None:
    message = failure(run_faults, "misspelt")
    assert "no handler for the type 'misspelt'" in message
    assert "psched_app" in message


class TestQueueInMemory:
    @pytest.fixture
    def psched_config(self) -> Config:
        return config_of("sqlite://")

    def test_is_refused(self, run_faults: Run) -> None:
        assert "sqlite:// is in memory, which the forked processes do not share" in failure(run_faults, "increment")


def test_a_function_that_fails_to_prepare_says_why_it_is_called_again(run_faults: Run) -> None:
    with pytest.raises(psched.AlreadyExistsError) as caught:
        run_faults("increment", "increment")
    assert "reset= must undo its effects" in caught.value.__notes__[0]


class TestServers:
    """Tests on a database where a frozen worker's transaction holds locks, for which the next worker waits."""

    @pytest.fixture(params=["postgresql+psycopg", "mysql+pymysql"])
    def psched_config(self, request: pytest.FixtureRequest) -> Iterator[Config]:
        server = request.getfixturevalue("postgresql" if "postgresql" in request.param else "mariadb")
        with server.database() as url:
            engine = sa.create_engine(url)
            with engine.begin() as connection:
                connection.execute(sa.text("CREATE TABLE counter (n INTEGER)"))
                connection.execute(sa.text("CREATE TABLE done (task VARCHAR(100) PRIMARY KEY)"))
                connection.execute(sa.text("INSERT INTO counter VALUES (0)"))
            Shop.url, Shop.engine = url, engine
            yield config_of(url)
            engine.dispose()

    @staticmethod
    def reset() -> None:
        with Shop.engine.begin() as connection:
            connection.execute(sa.text("UPDATE counter SET n = 0"))
            connection.execute(sa.text("DELETE FROM done"))

    @staticmethod
    def state() -> Any:
        with Shop.engine.connect() as connection:
            return connection.execute(sa.text("SELECT n FROM counter")).all()

    @pytest.fixture
    def shop(self, psched_effects: Effects, psched_queue: Queue) -> type[Shop]:
        Shop.effects, Shop.queue = psched_effects, psched_queue
        return Shop

    @pytest.mark.in_suite_on("postgresql+psycopg")
    def test_a_handler_that_may_run_twice_passes(self, run_faults: Run) -> None:
        run_faults("count once", state=self.state, reset=self.reset)

    @pytest.mark.in_suite_on("mysql+pymysql")
    def test_a_lost_update_is_found(self, run_faults: Run) -> None:
        message = failure(run_faults, "count", state=self.state, reset=self.reset)
        assert "the lease lost before commit 1 of 1" in message
        assert "+[(2,)]" in message


@app.task("count once")
def count_once(task: psched.Task) -> None:
    with Shop.engine.begin() as connection:  # of before the fork
        taken = connection.execute(sa.text("SELECT n FROM counter FOR UPDATE")).scalar()
        if not connection.execute(sa.text("SELECT 1 FROM done WHERE task = :key"), {"key": task.key}).scalar():
            connection.execute(sa.text("INSERT INTO done VALUES (:key)"), {"key": task.key})
            connection.execute(sa.text("UPDATE counter SET n = :n"), {"n": taken + 1})


@app.task("count")
def count(task: psched.Task) -> None:
    with Shop.engine.begin() as connection:
        connection.execute(sa.text("UPDATE counter SET n = n + 1"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"state": state, "seeds": -1}, "seeds must be a whole number, 0 or more, or a list of seeds"),
        ({"state": state, "seeds": "12"}, "seeds must be a whole number"),
        ({"state": state, "seeds": 1.5}, "seeds must be a whole number"),
        ({"state": None}, "state must be a function, got None"),
        ({"state": state, "reset": "table"}, "reset must be a function, got 'table'"),
        ({"state": workflow.function}, "state must be a plain function, not `async def`"),
    ],
)
def test_unusable_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        psched.testing.faults(**arguments)


@pytest.mark.parametrize("test", [workflow.function, Shop, "test", lambda: (yield)])
def test_only_a_plain_function_can_be_decorated(test: Any) -> None:
    with pytest.raises(ConfigError, match="decorate a plain test function"):
        psched.testing.faults(state=state)(test)


def test_a_task_that_computes_for_long_is_not_taken_to_wait_for_a_lock(
    run_faults: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psched.testing.faulty_process._ASLEEP", 25)  # 0.05 s
    assert "the lease lost before commit 1 of 1" in failure(run_faults, "compute, then check and act")


@app.task("compute, then check and act")
def compute_then_act(task: psched.Task) -> None:
    """Compute for 0.15 s in every run but the first, and only then check and act."""
    end = time.process_time() + 0.15
    while task.attempts > 1 and time.process_time() < end:
        pass
    check_then_act.function(task)


def test_a_test_that_the_plugin_does_not_run_fails() -> None:
    @psched.testing.faults(state=state)
    def test() -> None:
        """A test that is called without the plugin, as unittest would call it."""

    with pytest.raises(ConfigError, match="under faults, but it did not"):
        test()

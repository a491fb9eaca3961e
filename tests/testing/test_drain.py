"""psched_queue, psched_schedules, psched_drain, psched_inline and psched_clock, as users' tests use them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import psched
from psched.application import App
from psched.config import from_mapping
from psched.handlers.enqueue import Enqueue
from psched.model import CatchUp
from psched.queue.queue import Queue, open_queue
from psched.schedules.collection import ScheduleCollection
from psched.testing import DatabaseClock, Drain, drain
from psched.testing.faults_decorator import running

app = App()
ran: list[str] = []
opened: list[Queue] = []
"""A list whose only item is the queue to which handlers submit."""


@pytest.fixture(autouse=True)
def _nothing_ran() -> Iterator[None]:
    yield
    ran.clear()
    opened.clear()


@pytest.fixture
def psched_app() -> Any:
    return [app, Enqueue]


@app.task("note")
def note(task: psched.Task) -> None:
    ran.append(task.key)


@app.task("fail", retry_wait=60, max_attempts=3)
def fail(task: psched.Task) -> None:
    ran.append(task.key)
    raise ValueError(f"attempt {task.attempts}")


@app.task("parent")
def parent(task: psched.Task) -> None:
    ran.append(task.key)
    opened[0].submit("child", "note")


@app.task("async")
async def in_a_loop(task: psched.Task) -> None:
    await asyncio.sleep(0)
    ran.append(task.key)


@app.task("forever")
def forever(task: psched.Task) -> None:
    opened[0].submit(task.key + ".", "forever")


@app.task("countdown")
def countdown(task: psched.Task, left: int) -> None:
    ran.append(task.key)
    if left:
        opened[0].submit(f"{left - 1}", "countdown", {"left": left - 1})


@app.task("double")
def double(number: int) -> int:
    return 2 * number


@app.task("refuse", max_attempts=1)
def refuse() -> int:
    raise ValueError("refused")


@app.task("await")
def await_others(task: psched.Task) -> None:
    ran.append(str(double.submit(21).result()))
    try:
        refuse.submit().result()
    except psched.TaskFailedError:
        ran.append("failed")
    double.submit(1)


@app.task("stop")
def stop(task: psched.Task) -> None:
    pytest.fail("an assertion in the handler")


def test_drain_runs_what_is_due_and_what_that_submits(psched_queue: Queue, psched_drain: Drain) -> None:
    opened.append(psched_queue)
    psched_queue.submit("parent", "parent")
    runs = psched_drain()
    assert ran == ["parent", "child"]
    assert [(run.key, run.type, run.outcome, run.error) for run in runs] == [
        ("parent", "parent", "finished", None),
        ("child", "note", "finished", None),
    ]
    assert psched_queue["child"].metadata().status == "finished"
    assert psched_drain() == []


@app.task()
def sized(size: int) -> int:
    return size + 1


def test_all_task_functions_submit_to_the_queue_of_the_test(psched_queue: Queue, psched_drain: Drain) -> None:
    async def submit() -> str:
        return (await sized.asubmit(2)).key

    queued = sized.submit(1)
    key = asyncio.run(submit())
    assert {row.key for row in psched_queue.list()} == {queued.key, key}
    psched_drain()
    assert (queued.result(), psched_queue[key].result()) == (2, 3)


def test_an_app_with_a_queue_of_its_own_submits_to_that_of_the_test(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    own = App()
    task = own.task("own")(lambda task: None)
    config = {"type": "rdb", "url": f"sqlite:///{tmp_path / 'own.db'}", "queue": {}}
    section = from_mapping(config).queue
    assert section is not None
    with open_queue(section, "tests") as made:
        made.store.create_tables()
    with own.open(config) as opened:
        queue = request.getfixturevalue("psched_queue")
        key = task.submit().key
        assert queue[key].exists()
        assert not opened[key].exists()


def test_drain_runs_async_handlers_also_in_an_async_test(psched_queue: Queue, psched_drain: Drain) -> None:
    async def body() -> None:
        psched_queue.submit("in a loop", "async")
        psched_drain()

    psched_queue.submit("plain", "async")
    psched_drain()
    asyncio.run(body())
    assert ran == ["plain", "in a loop"]


@pytest.mark.parametrize("number", [1, 2])
def test_each_test_has_empty_tables(psched_queue: Queue, psched_schedules: ScheduleCollection, number: int) -> None:
    assert not list(psched_queue.list())
    assert not list(psched_schedules.list())
    psched_queue.submit("key", "note")
    psched_schedules.add("key", "note", cron="@hourly")


def test_an_error_of_a_handler_is_raised_after_its_task_was_retried(psched_queue: Queue, psched_drain: Drain) -> None:
    psched_queue.submit("key", "fail")
    with pytest.raises(ValueError, match="attempt 1"):
        psched_drain()
    row = psched_queue["key"].metadata()
    assert (row.status, row.attempts) == ("waiting", 1)
    assert "attempt 1" in str(row.last_error)


def test_drain_until_a_time_runs_retries_and_delayed_tasks_at_their_times(
    psched_queue: Queue, psched_drain: Drain, psched_clock: DatabaseClock
) -> None:
    psched_clock.travel_to("2027-01-01T00:00Z")
    start = psched_clock.time()
    psched_queue.submit("delayed", "note", run_at=start + 90)
    psched_queue.submit("later", "note", run_at=start + 3600)
    psched_queue.submit("failing", "fail")
    runs = psched_drain(until=timedelta(minutes=10), raises=False)
    assert [(run.key, run.outcome) for run in runs] == [
        ("failing", "retried"),
        ("failing", "retried"),
        ("delayed", "finished"),
        ("failing", "failed"),
    ]
    assert [str(run.error) for run in runs if run.error] == ["attempt 1", "attempt 2", "attempt 3"]
    assert psched_clock.time() == start + 600
    assert psched_queue["delayed"].metadata().finished_at == start + 90
    assert psched_queue["failing"].metadata().finished_at == start + 120
    assert psched_queue["later"].metadata().status == "waiting"


def test_schedules_follow_the_clock_over_daylight_saving_time(
    psched_schedules: ScheduleCollection, psched_drain: Drain, psched_clock: DatabaseClock
) -> None:
    """02:30 does not exist on 28 March 2027 in Berlin. In that night the run is at 03:00."""
    psched_clock.travel_to("2027-03-27 01:59", "Europe/Berlin")
    psched_schedules.add("night", "note", cron="30 2 * * *", timezone="Europe/Berlin")
    times = []
    for day in (27, 28, 29):
        [run] = psched_drain(until=f"2027-03-{day} 12:00", tz="Europe/Berlin")
        times.append(run.scheduled_time)
    assert times == [1806111000, 1806195600, 1806280200]


@pytest.mark.parametrize(("catch_up", "count"), [("all", 48), ("latest", 1)])
def test_catch_up_follows_the_clock(
    psched_schedules: ScheduleCollection,
    psched_drain: Drain,
    psched_clock: DatabaseClock,
    catch_up: CatchUp,
    count: int,
) -> None:
    psched_clock.travel_to("2027-01-01T00:30Z")
    psched_schedules.add("hourly", "note", cron="0 * * * *", catch_up=catch_up)
    psched_clock.travel_to("2027-01-03T00:30Z")
    assert len(psched_drain()) == count


def test_leases_follow_the_clock(psched_queue: Queue, psched_drain: Drain, psched_clock: DatabaseClock) -> None:
    psched_clock.travel_to(1_800_000_000)
    psched_queue.submit("key", "note")
    lost = psched_queue.poll()
    assert lost is not None
    psched_clock.shift("4m")
    assert psched_queue.poll() is None
    psched_clock.shift("2m")
    [run] = psched_drain()
    assert run.attempts == 2
    with pytest.raises(psched.PreemptedError):
        lost.finish()


def test_a_schedule_that_enqueues_finds_the_queue(
    psched_schedules: ScheduleCollection, psched_drain: Drain, psched_clock: DatabaseClock
) -> None:
    psched_clock.travel_to("2027-01-01T00:30Z")
    psched_schedules.add("key", "enqueue.note", cron="@hourly")
    psched_drain(until="2027-01-01T01:30Z")
    assert ran == ["key@1798765200"]


def test_inline_runs_a_task_at_its_submit_and_raises_its_error(
    psched_inline: Queue, psched_clock: DatabaseClock
) -> None:
    psched_inline.submit("key", "note")
    assert ran == ["key"]
    assert psched_inline["key"].metadata().status == "finished"
    with pytest.raises(ValueError, match="attempt 1"):
        psched_inline.submit("failing", "fail")
    psched_inline.submit("later", "note", run_at=psched_clock.time() + 60)
    assert ran == ["key", "failing"]


def test_inline_runs_a_long_chain_of_tasks_one_after_the_other(psched_inline: Queue) -> None:
    opened.append(psched_inline)
    psched_inline.submit("start", "countdown", {"left": 300})
    assert ran == ["start", *(str(number) for number in reversed(range(300)))]


def test_inline_runs_a_chain_of_coroutines(psched_inline: Queue) -> None:
    async def submit() -> None:
        await chain.asubmit(40)

    asyncio.run(submit())
    assert ran == [str(number) for number in reversed(range(41))]


@app.task("chain")
async def chain(left: int) -> None:
    ran.append(str(left))
    if left:
        await chain.asubmit(left - 1)


def test_inline_ends_a_chain_without_end(psched_inline: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "_LIMIT", 50)
    opened.append(psched_inline)
    with pytest.raises(AssertionError, match="stopped after 50 runs.* does a task submit itself"):
        psched_inline.submit("key", "forever")


@pytest.mark.parametrize("fixture", ["psched_inline", "psched_queue"])
def test_a_handler_may_wait_for_the_result_of_another_task(
    fixture: str, psched_drain: Drain, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(fixture).submit("key", "await")
    psched_drain()
    assert ran == ["42", "failed"]


def test_an_error_of_a_task_for_whose_result_nobody_waits_is_raised(psched_inline: Queue) -> None:
    opened.append(psched_inline)
    with pytest.raises(ValueError, match="attempt 1"):
        app.task("waits for another")(lambda: (fail.submit(), double.submit(1).result())).submit()


def test_inline_refuses_a_callers_transaction(psched_inline: Queue) -> None:
    with pytest.raises(psched.NotSupportedError, match=r"call psched_drain\(\) after the commit"):
        psched_inline.submit("key", "note", connection=object())
    assert not psched_inline["key"].exists()


def test_a_task_without_handler_is_an_error_that_names_the_remedy(psched_queue: Queue, psched_drain: Drain) -> None:
    psched_queue.submit("key", "misspelt")
    with pytest.raises(
        psched.ConfigError, match="no handler for the type 'misspelt' of 'key'; name the App in the fixture psched_app"
    ):
        psched_drain()
    assert psched_queue["key"].metadata().status == "waiting"


def test_a_task_that_submits_itself_ends_the_drain(psched_queue: Queue, psched_drain: Drain) -> None:
    opened.append(psched_queue)
    psched_queue.submit("key", "forever")
    with pytest.raises(AssertionError, match="psched_drain stopped after 50 runs.* does a task submit itself"):
        psched_drain(limit=50)


def test_a_test_under_faults_must_not_run_the_tasks_itself(psched_inline: Queue, psched_drain: Drain) -> None:
    token = running.set(True)  # as the plugin does while it calls the test function
    try:
        for run in (psched_drain, lambda: psched_inline.submit("key", "note")):
            with pytest.raises(psched.ConfigError, match=r"remove psched_drain\(\) and psched_inline"):
                run()
    finally:
        running.reset(token)
    assert ran == []


@pytest.mark.parametrize("by", [float("nan"), float("inf"), True, None])
def test_a_shift_by_no_duration_is_refused(by: Any, psched_clock: DatabaseClock) -> None:
    with pytest.raises(ValueError, match="a duration must be seconds, a timedelta or text like '5m', got"):
        psched_clock.shift(by)


@pytest.mark.parametrize("limit", ["x", 0, 2.5, None, True])
def test_a_limit_that_is_no_number_of_runs_is_refused(limit: Any, psched_drain: Drain) -> None:
    with pytest.raises(ValueError, match=r"limit must be a whole number above 0, got ('x'|0|2.5|None|True)"):
        psched_drain(limit=limit)


def test_what_is_no_exception_ends_the_test_and_releases_the_task(psched_queue: Queue, psched_drain: Drain) -> None:
    psched_queue.submit("key", "stop")
    with pytest.raises(pytest.fail.Exception, match="an assertion in the handler"):
        psched_drain()
    assert psched_queue["key"].metadata().status == "waiting"


class TestTablesOfOthers:
    @pytest.fixture
    def psched_config(self, tmp_path: Path) -> dict[str, Any]:
        config = {"type": "rdb", "url": f"sqlite:///{tmp_path / 'production.db'}"}
        section = from_mapping({**config, "queue": {}}).queue
        assert section is not None
        with open_queue(section, "production") as queue:
            queue.store.create_tables()
            queue.submit("precious", "note")
        return {**config, "queue": {}}

    @pytest.fixture
    def left_alone(self, psched_config: dict[str, Any]) -> Iterator[None]:
        yield
        with psched.open_queue(psched_config) as queue:
            assert [row.key for row in queue.list()] == ["precious"]

    def test_rows_of_others_are_refused_and_left_alone(self, left_alone: None, request: pytest.FixtureRequest) -> None:
        with pytest.raises(psched.ConfigError, match="has rows, such as 'precious'.* psched_config"):
            request.getfixturevalue("psched_queue")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("2027-03-28 02:30", "Europe/Berlin"), "does not exist in Europe/Berlin"),
        (("2027-03-28 01:59",), "has no time zone; name it, as in"),
        (("2027-03-28 01:59+01:00", "UTC"), "already has a time zone"),
        (("tomorrow", "UTC"), "'tomorrow' is not a time; expected for example"),
        ((None,), "a time must be text like"),
        ((-1,), "when must be unix seconds"),
        (("2027-03-28 01:59", "Europe/Berlim"), "is not a zone of the tz database"),
    ],
)
def test_impossible_times_are_refused(psched_clock: DatabaseClock, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises((ValueError, psched.ConfigError), match=message):
        psched_clock.travel_to(*arguments)


@pytest.mark.parametrize(
    ("by", "message"), [("soon", "'soon' is not a duration"), (True, "a duration must be seconds")]
)
def test_impossible_durations_are_refused(psched_clock: DatabaseClock, by: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        psched_clock.shift(by)


def test_drain_refuses_an_end_before_the_clock(psched_drain: Drain) -> None:
    with pytest.raises(ValueError, match="is earlier than the clock"):
        psched_drain(until="2020-01-01T00:00Z")


def test_a_local_time_that_comes_twice_is_its_first_pass(psched_clock: DatabaseClock, psched_queue: Queue) -> None:
    psched_clock.travel_to("2027-10-31 02:30", "Europe/Berlin")
    assert str(psched_clock.now()) == "2027-10-31 00:30:00+00:00"
    assert psched_queue.store.now() == psched_clock.time()


def test_the_clock_is_true_until_it_is_set(psched_clock: DatabaseClock, psched_queue: Queue) -> None:
    assert abs(psched_queue.store.now() - time.time()) < 60
    assert abs(psched_clock.time() - time.time()) < 60
    psched_clock.travel_to(1_800_000_000)
    assert psched_queue.store.now() == 1_800_000_000
    psched_clock.stop()
    assert abs(psched_queue.store.now() - time.time()) < 60
    psched_clock.start()


@pytest.mark.parametrize("database", ["postgresql", "mariadb", "sqlite"], indirect=True)
class TestServers:
    @pytest.fixture
    def psched_config(self, database: str) -> dict[str, Any]:
        return {"type": "rdb", "url": database, "schedules": {}, "queue": {}}

    def test_their_clock_is_set_also_in_a_callers_transaction(
        self, psched_queue: Queue, psched_drain: Drain, psched_clock: DatabaseClock, database: str
    ) -> None:
        engine = sa.create_engine(database)
        psched_clock.travel_to("2027-01-01T00:00Z")
        start = psched_clock.time()
        with engine.begin() as connection:
            psched_queue.submit("now", "note", connection=connection)
        psched_queue.submit("later", "note", run_at=start + 3600)
        assert [run.key for run in psched_drain()] == ["now"]
        assert [run.key for run in psched_drain(until="2027-01-01T01:00Z")] == ["later"]
        row = psched_queue["later"].metadata()
        assert (row.created_at, row.finished_at) == (start, start + 3600)
        engine.dispose()


class TestRedis:
    @pytest.fixture
    def psched_config(self) -> dict[str, Any]:
        return {"type": "redis", "url": "redis://127.0.0.1:1/0", "queue": {}}

    @pytest.mark.usefixtures("_psched_tables")
    def test_its_clock_cannot_be_set(self, psched_clock: DatabaseClock) -> None:
        with pytest.raises(psched.NotSupportedError, match="tables of type: rdb, not of type: redis"):
            psched_clock.travel_to(1_800_000_000)

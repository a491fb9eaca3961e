"""Occurrences that become tasks: in one transaction if both tables are in one database, else submitted first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from psched.errors import IdempotentAlreadyFinishedError, NotSupportedError, PreemptedError
from psched.handlers.enqueue import Enqueue
from psched.model import LeaseTimes, NewTask
from psched.queue.queue import Queue
from psched.schedules.collection import Defaults, ScheduleCollection
from psched.task import Task
from tests.daemon.harness import wait_for
from tests.stores.bench import LONG_AGO, Bench
from tests.stores.databases import PAIRS, SharedDatabases
from tests.stores.queue.bench import QueueBench, keys_in, row_of
from tests.stores.queue.conftest import open_bench

TIMES = LeaseTimes(alive_time=100, retry_wait=0, prefetch_time=100)


class Feed:
    """A schedule that is due, and the queue to which its runs submit."""

    def __init__(self, benches: Bench, queues: QueueBench) -> None:
        self.bench = benches
        self.queues = queues
        self.schedules = ScheduleCollection(benches.open(), TIMES, Defaults())
        self.queue = Queue(queues.queue(), TIMES)
        self.schedules.submit_to(self.queue.store)

    def task(self, type_: str = "enqueue.report", **data: object) -> Task:
        """Add a schedule `s` that is due. Return its run."""
        self.schedules.add("s", type_, cron="0 0 * * *", next_time=LONG_AGO, data=data)
        task = self.schedules.poll()
        assert task is not None
        return task

    def occurrence(self) -> int:
        return self.schedules["s"].metadata().next_time

    def keys(self) -> list[str]:
        return keys_in(self.queue.store)


@pytest.fixture(params=PAIRS, ids="-".join)
def feed(request: pytest.FixtureRequest, databases: SharedDatabases, tmp_path: Path) -> Iterator[Feed]:
    """A feed with both tables in one database."""
    type_, database = request.param
    schedules, queue = databases.bench(type_, database, tmp_path), open_bench(databases, type_, database, tmp_path)
    with closing(schedules), closing(queue):
        if database == "sqlite":  # tables of earlier tests are in files of their own
            schedules.make()
            queue.make()
            yield Feed(schedules, queue)
            return
        with databases.made(schedules), databases.made(queue):
            yield Feed(schedules, queue)


@pytest.fixture
def apart(databases: SharedDatabases, tmp_path: Path) -> Iterator[Feed]:
    """A feed with each table in a database of its own."""
    (tmp_path / "other").mkdir()
    schedules = databases.bench("rdb", "sqlite", tmp_path)
    queue = open_bench(databases, "rdb", "sqlite", tmp_path / "other")
    with closing(schedules), closing(queue):
        schedules.make()
        queue.make()
        yield Feed(schedules, queue)


def test_a_finished_occurrence_has_its_task(feed: Feed) -> None:
    task = feed.task()
    time = task.scheduled_time
    task.finish_by_submitting(NewTask(f"s@{time}", "report", {"n": 1}))
    assert task.outcome == "finished"
    assert feed.occurrence() > time
    assert row_of(feed.queue.store, f"s@{time}").data == {"n": 1}
    with pytest.raises(IdempotentAlreadyFinishedError):
        task.finish_by_submitting(NewTask(f"s@{time}", "report"))


def test_an_occurrence_that_is_lost_leaves_no_task(feed: Feed) -> None:
    task = feed.task()
    time = feed.occurrence()
    feed.bench.write("s", **{feed.bench.columns.due: (LONG_AGO - 77) * feed.bench.columns.per_second})
    others = ScheduleCollection(feed.bench.open(), replace(TIMES, alive_time=200), Defaults())
    others.submit_to(feed.queue.store)
    other = others.poll()
    assert other is not None
    with pytest.raises(PreemptedError):
        task.finish_by_submitting(NewTask(f"s@{time}", "report"))
    assert feed.keys() == []
    other.finish_by_submitting(NewTask(f"s@{time}", "report"))
    assert feed.keys() == [f"s@{time}"]


def test_a_task_that_cannot_be_written_leaves_the_occurrence(feed: Feed) -> None:
    task = feed.task()
    time = feed.occurrence()
    feed.queues.rows.drop()
    with pytest.raises(Exception, match="(?i)no such table|doesn't exist|does not exist"):
        task.finish_by_submitting(NewTask(f"s@{time}", "report"))
    assert feed.occurrence() == time
    assert not task.settled


def test_a_task_that_is_there_already_finishes_the_occurrence(feed: Feed) -> None:
    task = feed.task()
    time = task.scheduled_time
    feed.queue.submit(f"s@{time}", "report", {"n": "first"})
    task.finish_by_submitting(NewTask(f"s@{time}", "report", {"n": "second"}))
    assert feed.occurrence() > time
    assert row_of(feed.queue.store, f"s@{time}").data == {"n": "first"}


def test_in_two_databases_the_task_is_there_before_the_occurrence_is_over(apart: Feed) -> None:
    task = apart.task()
    time = task.scheduled_time
    apart.schedules.store.delete("s")
    with pytest.raises(Exception, match="gone"):
        task.finish_by_submitting(NewTask(f"s@{time}", "report"))
    assert apart.keys() == [f"s@{time}"]
    again = apart.task()
    again.finish_by_submitting(NewTask(f"s@{again.scheduled_time}", "report"))
    assert apart.occurrence() > time


def test_without_a_queue_the_occurrence_stays(apart: Feed) -> None:
    schedules = ScheduleCollection(apart.bench.open(), TIMES, Defaults())
    schedules.add("s", "t", cron="0 0 * * *", next_time=LONG_AGO)
    task = schedules.poll()
    assert task is not None
    with pytest.raises(NotSupportedError, match="queue:"):
        task.finish_by_submitting(NewTask("key", "report"))
    assert not task.settled


# The application


def run(task: Task) -> None:
    factory = Enqueue.route(task.type)
    assert factory is not None
    factory(task).run()


def test_enqueue_submits_what_the_schedules_data_says(apart: Feed) -> None:
    task = apart.task(data={"to": "all"}, user="u", max_running=2, priority=3, max_attempts=4)
    run(task)
    row = row_of(apart.queue.store, f"s@{task.scheduled_time}")
    assert (row.type, row.data, row.user, row.max_running, row.priority, row.max_attempts) == (
        "report",
        {"to": "all"},
        "u",
        2,
        3,
        4,
    )
    assert task.outcome == "finished"


def test_the_data_may_name_the_type(apart: Feed) -> None:
    task = apart.task("enqueue", type="mail")
    run(task)
    assert row_of(apart.queue.store, f"s@{task.scheduled_time}").type == "mail"


@pytest.mark.parametrize(
    ("type_", "data", "fault"),
    [
        ("enqueue.t", {"usr": "u"}, "unknown key 'usr' (did you mean 'user'?)"),
        ("enqueue.t", {"user": 7}, "user: "),
        ("enqueue.t", {"priority": 101}, "priority must be a whole number from -100 to 100, got 101"),
        ("enqueue.t", {"max_running": 2}, "max_running 2 needs a user"),
        ("enqueue", {}, "the schedule gives no type for its tasks"),
    ],
)
def test_data_that_makes_no_task_is_reported_and_tried_again(
    apart: Feed, type_: str, data: dict[str, object], fault: str
) -> None:
    apart.schedules.add("s", type_, cron="0 0 * * *", next_time=LONG_AGO, data=data)
    task = apart.schedules.poll()
    assert task is not None
    run(task)
    assert task.outcome == "retried"
    assert fault in str(apart.schedules["s"].metadata().last_error)
    assert apart.keys() == []


def test_each_extra_run_has_a_task_of_its_own(feed: Feed) -> None:
    run(feed.task())
    if not feed.schedules.store.keeps_policies:
        with pytest.raises(NotSupportedError, match="extra runs"):
            feed.schedules["s"].run_now()
        return
    for _ in range(3):
        feed.schedules["s"].modify(next_time=4_000_000_000)
        feed.schedules["s"].run_now()
        run(wait_for(feed.schedules.poll))
    keys = feed.keys()
    assert len(keys) == 4
    assert sum(key.endswith(".extra") for key in keys) == 3

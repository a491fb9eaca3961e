"""A task's end whose answer was lost is recognised by the leases that the row records, or reported as unknown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from psched.errors import IdempotentAlreadyFinishedError, NotFoundError, OutcomeUnknownError, ScheduleError
from psched.model import Claim, LeaseTimes
from psched.queue.settlement import TaskSettlement
from psched.store import TaskStore
from psched.task import Task, finish_many
from tests.stores.bench import soon
from tests.stores.lost_answers import answer_lost, writes_of
from tests.stores.queue.bench import QueueBench, row_of

FAILING: dict[str, Callable[[TaskStore, Claim], object]] = {
    "retire": lambda store, claim: store.retire(claim, "failed", "it broke", None, soon()),
    "retire_many": lambda store, claim: of_many(store.retire_many([claim], "failed", None, soon())),
}


def of_many(answers: list[Any]) -> None:
    (answer,) = answers
    if isinstance(answer, ScheduleError):
        raise answer


def taken(bench: QueueBench, store: TaskStore, key: str) -> Claim:
    bench.submit(store, [key])
    return bench.claim(store, key)


def fail(bench: QueueBench, store: TaskStore, verb: str, meanwhile: Callable[[], object]) -> None:
    """Let a task fail, and lose the answer."""
    claim, rehearsed = taken(bench, store, "key"), taken(bench, store, "rehearsed")
    number = writes_of(lambda: FAILING[verb](store, rehearsed))
    store.delete("rehearsed")
    with answer_lost(bench.database, number, meanwhile):
        FAILING[verb](store, claim)


def begin_again(bench: QueueBench, other: TaskStore, times: int) -> None:
    """Let the task be tried again `times` times. The last attempt stays running."""
    for time in range(times):
        other.retry_failed("key")
        claim = bench.claim(other, "key")
        if time + 1 < times:
            other.retire(claim, "failed", None, None, soon())


@pytest.mark.parametrize("times", [0, 1, 2])
@pytest.mark.parametrize("verb", FAILING)
def test_a_lost_settle_is_recognised_after_another_attempt(ours: QueueBench, verb: str, times: int) -> None:
    store, other = ours.queue(), ours.queue()
    fail(ours, store, verb, lambda: begin_again(ours, other, times))
    assert row_of(store, "key").status == ("running" if times else "failed")


@pytest.mark.parametrize("verb", FAILING)
def test_what_the_row_does_not_know_any_more_is_reported_to_be_unknown(ours: QueueBench, verb: str) -> None:
    store, other = ours.queue(), ours.queue()
    with pytest.raises(OutcomeUnknownError, match="'key'.* holds it now"):
        fail(ours, store, verb, lambda: begin_again(ours, other, 9))
    assert row_of(store, "key").status == "running"


@pytest.mark.parametrize("verb", FAILING)
def test_of_a_task_that_was_created_anew_it_is_unknown_and_of_a_deleted_one_no_matter(
    ours: QueueBench, verb: str
) -> None:
    store, other = ours.queue(), ours.queue()

    def create_anew() -> None:
        other.delete("key")
        ours.submit(other, ["key"])

    with pytest.raises(OutcomeUnknownError, match="'key'.*no worker holds it now"):
        fail(ours, store, verb, create_anew)
    assert row_of(store, "key").status == "waiting"
    store.delete("key")
    with pytest.raises(NotFoundError):
        fail(ours, store, verb, lambda: other.delete("key"))


def test_data_that_was_perhaps_written_before_the_lease_was_lost_is_reported_to_be_unknown(ours: QueueBench) -> None:
    store, other = ours.queue(), ours.queue()
    claim, rehearsed = taken(ours, store, "key"), taken(ours, store, "rehearsed")
    number = writes_of(lambda: store.update_data(rehearsed, {"n": 2}, soon()))
    lost = answer_lost(ours.database, number, lambda: other.preempt("key", 100))
    with lost, pytest.raises(OutcomeUnknownError):
        store.update_data(claim, {"n": 2}, soon())
    assert row_of(store, "key").data == {"n": 2}


def test_a_task_that_is_retired_again_under_its_lease_is_recognised(ours: QueueBench) -> None:
    store = ours.queue()
    claim = taken(ours, store, "key")
    FAILING["retire"](store, claim)
    for retire_again in FAILING.values():
        with pytest.raises(IdempotentAlreadyFinishedError):
            retire_again(store, claim)


def test_runs_that_an_earlier_call_has_finished_count_as_finished(ours: QueueBench) -> None:
    store = ours.queue()
    claims = [taken(ours, store, key) for key in ("one", "two")]
    settlement, times = TaskSettlement(store, 100, None), LeaseTimes(100, 10, 10)
    assert settlement.finish_many(claims[:1], soon()) == [None]
    for again in (claims[:1], claims, claims):
        tasks = [Task(claim, settlement, times, soon()) for claim in again]
        assert finish_many(tasks, soon()) == {}
        assert [task.outcome for task in tasks] == ["finished"] * len(again)

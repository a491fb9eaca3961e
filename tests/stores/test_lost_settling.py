"""A settlement whose answer was lost is recognised by the leases that the row records, or reported as unknown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from psched.errors import (
    AlreadyFinishedError,
    IdempotentAlreadyFinishedError,
    OutcomeUnknownError,
    PreemptedError,
    ScheduleError,
)
from psched.model import Claim, Retry
from psched.store import ScheduleStore
from psched.store.ledger import LedgerFilter, Step
from tests.stores.bench import LONG_AGO, Bench, eventually, soon
from tests.stores.databases import on_our_tables
from tests.stores.lost_answers import answer_lost, writes_of

NEXT = LONG_AGO + 3600
SETTLING: dict[str, Callable[[ScheduleStore, Claim], object]] = {
    "release": lambda store, claim: store.release(claim.lease, soon()),
    "retry": lambda store, claim: store.retry(claim.lease, 0, None, soon()),
    "retry_many": lambda store, claim: of_many(store.retry_many([Retry(claim.lease, 0, None)], soon())),
    "advance": lambda store, claim: store.advance(claim, NEXT, NEXT, soon()),
    "advance_many": lambda store, claim: of_many(store.advance_many([Step(claim, NEXT, NEXT)], soon())),
}
"""Calls that settle a run, and make the row due immediately."""
GIVING_BACK = ["release", "retry", "retry_many"]


def of_many(answers: list[Any]) -> None:
    (answer,) = answers
    if isinstance(answer, ScheduleError):
        raise answer
    assert answer is None


class Stage:
    """Two holders, and a row that the first one holds."""

    def __init__(self, bench: Bench, verb: str) -> None:
        self.bench = bench
        self.settle = SETTLING[verb]
        self.store, self.other = bench.open(), bench.open()
        self.claim = self.taken("key")

    def taken(self, key: str) -> Claim:
        self.bench.add(self.store, key)
        return self.bench.take(self.store, key)

    def lose(self, meanwhile: Callable[[], object]) -> object:
        """Settle, and lose the answer. Return the result. `meanwhile`: called before the second attempt."""
        rehearsed = self.taken("rehearsed")
        number = writes_of(lambda: self.settle(self.store, rehearsed))
        self.store.delete("rehearsed")
        with answer_lost(self.bench.database, number, meanwhile):
            return self.settle(self.store, self.claim)

    def take_over(self, times: int = 1) -> None:
        """Let the other holder acquire the row `times` times, and keep the last lease."""
        for time in range(times):
            claim = self.bench.take(self.other, "key")
            if time + 1 < times:
                self.other.release(claim.lease, soon())

    def create_anew(self) -> None:
        self.other.delete("key")
        self.bench.add(self.other, "key")
        self.bench.take(self.other, "key")

    def entries(self) -> int:
        assert self.other.ledger is not None
        return len(list(self.other.ledger.rows(LedgerFilter("key"))))


@on_our_tables
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("verb", SETTLING)
def test_a_lost_settle_is_recognised_after_another_worker_has_acquired_the_row(
    bench: Bench, verb: str, times: int
) -> None:
    stage = Stage(bench, verb)
    assert stage.lose(lambda: stage.take_over(times)) is None
    assert stage.entries() == (0 if verb in GIVING_BACK else 1)
    assert stage.other.acquire(1, 100) == [], "the other one has the row still"


@on_our_tables
@pytest.mark.parametrize("meanwhile", [lambda stage: stage.take_over(9), Stage.create_anew], ids=["often", "anew"])
@pytest.mark.parametrize("verb", GIVING_BACK)
def test_what_the_row_does_not_know_any_more_is_reported_to_be_unknown(
    bench: Bench, verb: str, meanwhile: Callable[[Stage], None]
) -> None:
    stage = Stage(bench, verb)
    with pytest.raises(OutcomeUnknownError, match="'key'.* holds it now"):
        stage.lose(lambda: meanwhile(stage))
    assert stage.other.acquire(1, 100) == [], "the other one has the row still"


@on_our_tables
@pytest.mark.parametrize(
    "meanwhile",
    [lambda stage: stage.take_over(9), Stage.create_anew, lambda stage: stage.other.delete("key")],
    ids=["often", "anew", "deleted"],
)
@pytest.mark.parametrize("verb", ["advance", "advance_many"])
def test_the_ledger_knows_of_a_finish_whatever_became_of_the_row(
    bench: Bench, verb: str, meanwhile: Callable[[Stage], None]
) -> None:
    stage = Stage(bench, verb)
    assert stage.lose(lambda: meanwhile(stage)) is None
    assert stage.entries() == 1


@on_our_tables
@pytest.mark.parametrize("verb", SETTLING)
def test_a_lease_that_was_lost_before_is_reported_as_lost_although_the_answer_was_too(bench: Bench, verb: str) -> None:
    stage = Stage(bench, verb)
    bench.make_due("key")
    stage.take_over()
    before = bench.raw("key")
    with pytest.raises(PreemptedError, match="'key'.* holds it now"):
        stage.lose(lambda: None)
    assert bench.raw("key") == before


@on_our_tables
def test_a_lease_that_was_ended_otherwise_says_so(bench: Bench, store: ScheduleStore, other: ScheduleStore) -> None:
    bench.add(store, "key")
    claim = bench.take(store, "key")
    store.retry(claim.lease, 0, None, soon())
    for taken in (False, True):
        if taken:
            bench.take(other, "key")
        before = bench.raw("key")
        for verb in ("release", "advance"):
            with pytest.raises(AlreadyFinishedError, match="'key': this run was already retried") as caught:
                SETTLING[verb](store, claim)
            assert not isinstance(caught.value, IdempotentAlreadyFinishedError)
        with pytest.raises(IdempotentAlreadyFinishedError, match="'key': this run was already retried"):
            store.retry(claim.lease, 0, None, soon())
        assert bench.raw("key") == before


@on_our_tables
def test_after_a_call_that_was_never_answered_the_next_one_does_not_say_that_nothing_was_changed(bench: Bench) -> None:
    stage = Stage(bench, "release")
    stage.settle(stage.store, stage.claim)
    stage.take_over(9)
    with pytest.raises(PreemptedError):
        stage.settle(stage.store, stage.claim)
    lease = stage.claim.lease._replace(unanswered=True)
    with pytest.raises(OutcomeUnknownError):
        stage.settle(stage.store, stage.claim._replace(lease=lease))


@pytest.mark.parametrize("bare", [("rdb_compat", "sqlite"), ("rdb_compat", "postgresql")], indirect=True, ids="-".join)
@pytest.mark.parametrize("verb", GIVING_BACK)
def test_a_row_of_the_originals_keeps_nothing_by_which_it_could_be_known(bench: Bench, verb: str) -> None:
    """But while the lease lasts nobody else may change the row, so its state is the result of our own call."""
    stage = Stage.__new__(Stage)
    stage.bench, stage.settle = bench, SETTLING[verb]
    stage.store, stage.other = bench.open(), bench.open()
    bench.add(stage.store, "key")
    (stage.claim,) = stage.store.acquire(1, 1)

    def meanwhile() -> None:
        stage.take_over()
        eventually(lambda: stage.other.now() > stage.claim.lease.expires_at)

    with pytest.raises(OutcomeUnknownError):
        stage.lose(meanwhile)

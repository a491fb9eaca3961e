"""A lease that no longer holds changes nothing, whoever holds the row now, and whatever happened to it meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from psched.errors import AlreadyFinishedError, PreemptedError, ScheduleError
from psched.model import Claim
from psched.store import ScheduleStore
from tests.stores.bench import FAR_OFF, HOURLY, LONG_AGO, Bench, eventually, soon

NEXT = LONG_AGO + 3600

Scenario = Callable[[Bench, ScheduleStore, ScheduleStore, Claim], object]


def ended_and_taken(bench: Bench, store: ScheduleStore, other: ScheduleStore, claim: Claim) -> None:
    """Let the first holder's lease end. This is the only scenario in which that holder does nothing."""
    (lease,) = store.extend([claim.lease], bench.lease)
    assert lease is not None
    assert eventually(lambda: other.acquire(1, 200))


def released_and_taken(bench: Bench, store: ScheduleStore, other: ScheduleStore, claim: Claim) -> None:
    store.release(claim.lease, soon())
    bench.take(other, "key", 200)


def retried_and_taken(bench: Bench, store: ScheduleStore, other: ScheduleStore, claim: Claim) -> None:
    store.retry(claim.lease, -1, None, soon())
    bench.take(other, "key", 200)


def advanced_and_taken(bench: Bench, store: ScheduleStore, other: ScheduleStore, claim: Claim) -> None:
    store.advance(claim, NEXT, NEXT, soon())
    bench.take(other, "key", 200)


def taken_again_by_the_same_holder(bench: Bench, store: ScheduleStore, other: ScheduleStore, claim: Claim) -> None:
    store.release(claim.lease, soon())
    bench.take(store, "key", 200)


def released_by_the_next_holder(bench: Bench, store: ScheduleStore, other: ScheduleStore, claim: Claim) -> None:
    store.release(claim.lease, soon())
    other.release(bench.take(other, "key", 200).lease, soon())


def retried_by_the_next_holder(bench: Bench, store: ScheduleStore, other: ScheduleStore, claim: Claim) -> None:
    store.release(claim.lease, soon())
    other.retry(bench.take(other, "key", 200).lease, 500, "theirs", soon())


def advanced_by_the_next_holder(bench: Bench, store: ScheduleStore, other: ScheduleStore, claim: Claim) -> None:
    store.release(claim.lease, soon())
    other.advance(bench.take(other, "key", 200), FAR_OFF, FAR_OFF, soon())


def advanced_to_the_moment_our_lease_ends(
    bench: Bench, store: ScheduleStore, other: ScheduleStore, claim: Claim
) -> None:
    """The row's due time happens to equal the end of our lease. This must not make the row ours."""
    store.release(claim.lease, soon())
    end = int(claim.lease.expires_at)
    other.advance(bench.take(other, "key", 200), end, end, soon())


def extended_by_the_next_holder(bench: Bench, store: ScheduleStore, other: ScheduleStore, claim: Claim) -> None:
    store.release(claim.lease, soon())
    other.extend([bench.take(other, "key", 200).lease], 300)


def deleted_added_and_taken(bench: Bench, store: ScheduleStore, other: ScheduleStore, claim: Claim) -> None:
    """Another row has the same key. Its fences must not begin again at the value of ours."""
    other.delete("key")
    bench.add(other, "key")
    bench.take(other, "key", 200)


def moved_while_leased(bench: Bench, store: ScheduleStore, other: ScheduleStore, claim: Claim) -> None:
    """The next holder's leased row gets a new rule. This must not make the row ours."""
    store.release(claim.lease, soon())
    bench.take(other, "key", 200)
    seen = other.get("key")
    assert seen is not None
    assert other.modify(seen, replace(seen, rule=replace(HOURLY, cron="5 * * * *")))


SCENARIOS: list[Scenario] = [
    ended_and_taken,
    released_and_taken,
    retried_and_taken,
    advanced_and_taken,
    taken_again_by_the_same_holder,
    released_by_the_next_holder,
    retried_by_the_next_holder,
    advanced_by_the_next_holder,
    advanced_to_the_moment_our_lease_ends,
    extended_by_the_next_holder,
    deleted_added_and_taken,
    moved_while_leased,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_stale_lease_changes_nothing(
    bench: Bench, store: ScheduleStore, other: ScheduleStore, scenario: Scenario
) -> None:
    bench.add(store, "key")
    claim = bench.take(store, "key")
    scenario(bench, store, other, claim)
    before = bench.raw("key")
    calls: dict[str, Callable[[], object]] = {
        "release": lambda: store.release(claim.lease, soon()),
        "retry": lambda: store.retry(claim.lease, 50, "stale", soon()),
        "advance": lambda: store.advance(claim, NEXT, NEXT, soon()),
        "advance elsewhere": lambda: store.advance(claim, NEXT + 60, NEXT + 60, soon()),
    }
    for name, call in calls.items():
        with pytest.raises(refusal(bench, scenario), match="key"):
            call()
        assert bench.raw("key") == before, f"{name} under a stale lease wrote something"
    assert store.extend([claim.lease], 1000) == [None]
    assert bench.raw("key") == before


def refusal(bench: Bench, scenario: Scenario) -> type[ScheduleError]:
    """Return the error that our call raises: it depends on whether the row records that we ended our lease.

    Without such a record a store cannot know who stored an occurrence that is already stored.
    """
    if bench.compat:
        return ScheduleError if scenario is advanced_by_the_next_holder else PreemptedError
    return PreemptedError if scenario in (ended_and_taken, deleted_added_and_taken) else AlreadyFinishedError


def test_the_error_names_the_key_and_is_no_database_error(
    bench: Bench, store: ScheduleStore, other: ScheduleStore
) -> None:
    bench.add(store, "key.with 'odd' %s characters")
    claim = store.acquire(1, 100)[0]
    store.release(claim.lease, soon())
    other.acquire(1, 200)
    with pytest.raises(refusal(bench, released_and_taken), match="key.with 'odd' %s characters"):
        store.release(claim.lease, soon())

"""A lease is identified by its fence, the number of its acquire, and its holder."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from psched.errors import ScheduleError
from psched.model import Claim, Retry
from psched.store import ScheduleStore
from psched.store.ledger import Step
from tests.stores.bench import FAR_OFF, LOST, Bench, soon
from tests.stores.databases import on_our_tables

pytestmark = on_our_tables

SETTLING = ["release", "retry", "retry_many", "advance", "advance_many"]


@pytest.mark.parametrize("behind", [0, 3_600_000], ids=["lately", "an hour ago"])
def test_a_fence_is_no_smaller_than_the_clock_also_when_acquires_were_lost(
    bench: Bench, store: ScheduleStore, other: ScheduleStore, behind: int
) -> None:
    bench.add(store, "key")
    lost = bench.take(store, "key").lease
    before = store.now()
    as_a_failover_leaves_it(bench, fence=lost.fence - 1 - behind)
    fence = bench.take(other, "key").lease.fence
    assert int(before * 1000) <= fence <= other.now() * 1000
    assert fence > lost.fence


def test_a_fence_grows_although_it_is_ahead_of_the_clock(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "key")
    ahead = int(store.now() * 1000) + 3_600_000
    as_a_failover_leaves_it(bench, fence=ahead)
    claim = bench.take(store, "key")
    assert claim.lease.fence == ahead + 1
    store.release(claim.lease, soon())
    assert bench.take(store, "key").lease.fence == ahead + 2


@pytest.mark.parametrize("verb", SETTLING)
def test_a_lease_on_a_deleted_row_is_none_on_the_next_row_with_its_fence(
    bench: Bench, store: ScheduleStore, verb: str
) -> None:
    bench.add(store, "key")
    old = bench.take(store, "key")
    store.delete("key")
    bench.add(store, "key")
    new = bench.take(store, "key")
    bench.write("key", fence=old.lease.fence)
    before = bench.raw("key")
    assert settle(store, old, verb) is not None
    assert store.extend([old.lease], 200) == [None]
    assert bench.raw("key") == before
    same = Claim(new.row, new.lease._replace(fence=old.lease.fence))
    (renewed,) = store.extend([old.lease, same.lease], 200)[1:]
    assert renewed is not None
    assert settle(store, Claim(new.row, renewed), verb) is None


@pytest.mark.parametrize("verb", SETTLING)
def test_a_lease_is_worth_nothing_to_another_holder(
    bench: Bench, store: ScheduleStore, other: ScheduleStore, verb: str
) -> None:
    bench.add(store, "key")
    claim = bench.take(store, "key")
    before = bench.raw("key")
    assert settle(other, claim, verb) is not None
    assert other.extend([claim.lease], 200) == [None]
    assert bench.raw("key") == before
    assert settle(store, claim, verb) is None


def as_a_failover_leaves_it(bench: Bench, fence: int) -> None:
    """Write the row with this fence, as a failover leaves it: as if the last acquire had not happened."""
    bench.write("key", fence=fence)
    bench.make_due("key")


def settle(store: ScheduleStore, claim: Claim, verb: str) -> object:
    """Settle. Return None if that succeeded, else the error."""
    verbs: dict[str, Callable[[], object]] = {
        "release": lambda: store.release(claim.lease, soon()),
        "retry": lambda: store.retry(claim.lease, 50, None, soon()),
        "retry_many": lambda: store.retry_many([Retry(claim.lease, 50, None)], soon())[0],
        "advance": lambda: store.advance(claim, FAR_OFF, FAR_OFF, soon()),
        "advance_many": lambda: store.advance_many([Step(claim, FAR_OFF, FAR_OFF)], soon())[0],
    }
    try:
        found = verbs[verb]()
    except ScheduleError as error:
        found = error
    assert found is None or isinstance(found, LOST)
    return found

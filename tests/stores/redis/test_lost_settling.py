"""A finish whose answer was lost is known by its entry, whatever has become of the row since."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from psched.errors import PreemptedError
from psched.ledger import LedgerFilter
from psched.store import ScheduleStore
from tests.stores.bench import LONG_AGO, Bench, soon
from tests.stores.traffic import after_each


def lose_once(meanwhile: Callable[[], object]) -> Callable[[str], None]:
    """Return what loses the answer of the first script, and does something before it is sent again."""
    lost = False

    def lose(command: str) -> None:
        nonlocal lost
        if command.startswith("EVAL") and not lost:
            lost = True
            meanwhile()
            raise redis.ConnectionError("the answer is lost")

    return lose


@pytest.mark.parametrize("what", ["taken", "deleted"])
def test_it_is_done_also_when_the_row_was(bench: Bench, store: ScheduleStore, what: str) -> None:
    bench.add(store, "key")
    claim, other = bench.take(store, "key"), bench.open()

    def meanwhile() -> None:
        if what == "taken":
            assert len(other.acquire(1, 100)) == 1
        else:
            other.delete("key")

    with after_each(lose_once(meanwhile)):
        assert store.advance(claim, LONG_AGO + 3600, LONG_AGO + 3600, soon()) is None
    assert store.ledger is not None
    assert [row.fence for row in store.ledger.rows(LedgerFilter("key"))] == [claim.lease.fence]


def test_a_release_cannot_be_told_and_says_that_the_lease_is_lost(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "key")
    claim, other = bench.take(store, "key"), bench.open()
    with after_each(lose_once(lambda: other.acquire(1, 100))), pytest.raises(PreemptedError):
        store.release(claim.lease, soon())
    assert other.ledger is not None
    assert list(other.ledger.rows(LedgerFilter())) == []
    assert store.next_due() not in (None, 0.0)

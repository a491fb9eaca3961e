"""Large rows in the originals' tables: how many one acquire leases, and how many bytes it reads to choose them."""

from __future__ import annotations

import pytest

from tests.compat.test_rows_of_other_workers import Shared, shared
from tests.stores.bench import LONG_AGO
from tests.stores.statements import answers

__all__ = ["answers", "shared"]


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> int:
    """Reduce the maximum number of bytes of one acquire to a thousandth, so that the tests need only small rows.

    Return that maximum.
    """
    for module in ("rdb_compat.lease_store", "sql.paging"):
        monkeypatch.setattr(f"psched.backends.{module}.MAX_BATCH_SIZE", 16_000)
    return 16_000


def of_size(thousands: int, type_: str = "ours") -> bytes:
    head, tail = b'{"type":"%s","a":"' % type_.encode(), b'"}'
    return head + b"x" * (thousands * 1000 - len(head) - len(tail)) + tail


def fill(shared: Shared, data: list[bytes]) -> None:
    for n, content in enumerate(data):
        shared.insert(f"key{n}", data=content, timeout=LONG_AGO + n)


def takes(shared: Shared, limit: int = 10) -> list[list[str]]:
    """Acquire until no row is left. Return the keys of each acquire."""
    return list(iter(lambda: shared.take(limit), []))


def test_an_acquire_takes_what_fits_and_one_row_at_least(shared: Shared, budget: int) -> None:
    fill(shared, [of_size(size) for size in (17, 6, 6, 4, 1)])
    assert takes(shared) == [["key0"], ["key1", "key2", "key3"], ["key4"]]


def test_one_row_is_taken_however_large(shared: Shared, budget: int) -> None:
    fill(shared, [of_size(20), of_size(20)])
    assert takes(shared, limit=1) == [["key0"], ["key1"]]


def test_rows_of_others_do_not_count(shared: Shared, budget: int) -> None:
    large = of_size(20, "theirs")
    fill(shared, [large, of_size(6), large, large, of_size(6), of_size(3), large, of_size(2)])
    assert takes(shared) == [["key1", "key4", "key5"], ["key7"]]


def test_the_rest_that_is_found_behind_rows_of_others_fits_too(shared: Shared, budget: int) -> None:
    theirs = of_size(1, "theirs")
    fill(shared, [of_size(6), theirs, theirs, of_size(6), of_size(6), of_size(1)])
    assert takes(shared, limit=3) == [["key0", "key3"], ["key4", "key5"]]


def test_the_rest_is_left_when_nothing_of_it_fits(shared: Shared, budget: int) -> None:
    theirs = of_size(1, "theirs")
    fill(shared, [of_size(6), theirs, theirs, of_size(15), of_size(1)])
    assert takes(shared, limit=3) == [["key0"], ["key3", "key4"]]


def test_no_statement_reads_more_than_that(shared: Shared, budget: int, answers: list[int]) -> None:
    fill(shared, [of_size(6, "ours" if n % 4 == 3 else "theirs") for n in range(20)])
    assert [key for keys in takes(shared) for key in keys] == [f"key{n}" for n in range(3, 20, 4)]
    assert max(answers) <= budget, answers
    assert sum(answers) >= 20 * 6000, "what was read is not seen here"

"""A process without free file descriptors cannot connect. The store reports an outage, which ends with the shortage."""

from __future__ import annotations

import pytest

from tests.faults.dead_connections import see_that_it_is_unavailable
from tests.few_descriptors import few_descriptors
from tests.stores.bench import Bench


@pytest.mark.parametrize("free", [0, 1, 2])
def test_a_shortage_of_descriptors_is_an_outage(bench: Bench, free: int) -> None:
    """With enough descriptors for the first steps of connecting, a later step may fail."""
    store = bench.open()
    with few_descriptors(free):
        try:
            store.now()
        except Exception as error:  # noqa: BLE001 – not every driver needs three descriptors
            assert store.is_unavailable(error), repr(error)
            see_that_it_is_unavailable(store, store.now)  # the first error may still hold a descriptor
    store.now()

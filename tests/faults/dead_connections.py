"""Calls over connections that have died, for tests with servers that restart or go away."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from faultlab.servers import PASSWORD
from psched.errors import ScheduleError
from psched.model import Claim
from psched.store import ScheduleStore
from tests.stores.bench import FAR_OFF, LONG_AGO, Bench, keys_of, soon


class Held:
    """One store for each method, each with its own connection, which may be dead when the method is called."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.stores = [bench.open("host/1/same") for _ in range(9)]
        self.claims: list[Claim] = self.stores[0].acquire(4, 100)
        for store in self.stores:
            store.now()

    def use_every_verb(self) -> None:
        acquire, extend, release, retry, advance, get, add, list_, now = self.stores
        released, retried, advanced, extended = self.claims
        assert keys_of(acquire.acquire(10, 100)) == ["key4"]
        assert extend.extend([extended.lease], 100) != [None]
        release.release(released.lease, soon())
        retry.retry(retried.lease, 100, "error", soon())
        assert advance.advance(advanced, FAR_OFF, FAR_OFF, soon()) is None
        assert get.get("key0") is not None
        self.bench.add(add, "new")
        assert len(list(list_.list())) == 6
        assert now.now() > LONG_AGO


def see_that_it_is_unavailable(store: ScheduleStore, call: Callable[..., object], *arguments: object) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the driver's own, whichever it is
        call(*arguments)
    assert not isinstance(caught.value, ScheduleError), "a database error was renamed"
    assert store.is_unavailable(caught.value), repr(caught.value)
    assert PASSWORD not in f"{caught.value} {caught.value!r}"

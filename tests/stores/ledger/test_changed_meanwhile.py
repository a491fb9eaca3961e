"""A decision that is based on an acquired row does not overwrite changes that were made after the acquire."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from psched.model import Claim, LeaseTimes, Retry
from psched.retry_wait import Backoff
from psched.schedules.collection import Defaults, ScheduleCollection
from psched.schedules.pause_and_run_now import run_now
from psched.schedules.settlement import ScheduleSettlement
from psched.store import ScheduleStore
from psched.store.ledger import RUN_NOW
from tests.stores.bench import FAR_OFF, LONG_AGO, Bench, soon

HOUR = 3600


@pytest.fixture
def schedules(other: ScheduleStore) -> ScheduleCollection:
    """The schedules as a client uses them. The client is another holder than the worker with `store`."""
    return ScheduleCollection(other, LeaseTimes(300, 300, 300), Defaults("UTC"))


def acquired_while_paused(store: ScheduleStore, schedules: ScheduleCollection) -> Claim:
    """Let a worker acquire a schedule that was paused during an earlier attempt. Return the claim."""
    schedules.add("key", "t", cron="0 * * * *", next_time=int(store.now()) - 2 * HOUR)
    [claim] = store.acquire(1, 100)
    schedules["key"].pause()
    store.retry(claim.lease, 0, "it broke", soon())
    [claim] = store.acquire(1, 100)
    return claim


def test_what_is_paused_waits_for_the_end_of_the_pause(store: ScheduleStore, schedules: ScheduleCollection) -> None:
    claim = acquired_while_paused(store, schedules)
    assert ScheduleSettlement(store, "vixie").pass_over(claim, store.now(), soon())
    row = schedules["key"].metadata()
    assert (row.status, row.attempts, row.last_error) == ("waiting", 1, "it broke")
    assert row.next_run_time > FAR_OFF
    schedules["key"].resume()
    task = schedules.poll()
    assert task is not None
    assert (task.scheduled_time, task.attempts) == (claim.row.scheduled_time, 2)


def test_a_pause_that_ends_after_its_row_was_acquired_puts_nothing_off(
    store: ScheduleStore, schedules: ScheduleCollection
) -> None:
    claim = acquired_while_paused(store, schedules)
    schedules["key"].resume()
    assert ScheduleSettlement(store, "vixie").pass_over(claim, store.now(), soon())
    task = schedules.poll()
    assert task is not None
    assert (task.scheduled_time, task.attempts) == (claim.row.scheduled_time, 2)


def test_a_run_that_ends_in_a_pause_leaves_nothing_due(store: ScheduleStore, schedules: ScheduleCollection) -> None:
    start = int(store.now()) // HOUR * HOUR - 2 * HOUR
    schedules.add("key", "t", cron="0 * * * *", next_time=start)
    task = schedules.poll()
    assert task is not None
    schedules["key"].pause()
    task.finish()
    assert store.acquire(1, 100) == []
    assert schedules["key"].metadata().next_run_time > FAR_OFF
    schedules["key"].resume()
    following = schedules.poll()
    assert following is not None
    assert following.scheduled_time == start + HOUR


def test_nothing_is_skipped_by_a_policy_that_was_changed_since(
    store: ScheduleStore, schedules: ScheduleCollection
) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=LONG_AGO, catch_up="latest", max_lateness=5)
    [claim] = store.acquire(1, 100)
    schedules["key"].modify(catch_up="all", max_lateness=None)
    assert ScheduleSettlement(store, "vixie").pass_over(claim, store.now(), soon())
    assert list(schedules.history("key")) == []
    task = schedules.poll()
    assert task is not None
    assert (task.scheduled_time, task.attempts) == (claim.row.scheduled_time, 1)


def test_what_could_not_run_waits_unless_it_was_changed_since(
    bench: Bench, store: ScheduleStore, other: ScheduleStore, schedules: ScheduleCollection
) -> None:
    for key in ("alone", "one", "two", "unchanged"):
        bench.add(store, key)
    claims = {claim.row.key: claim for claim in store.acquire(4, 100)}
    retries = [Retry(claim.lease, 1000, "broken", claim.row.version) for claim in claims.values()]  # type: ignore[union-attr]
    for key in ("alone", "one", "two"):
        schedules[key].modify(data={"mended": 1})
    alone = retries.pop(0)
    assert alone.lease.key == "alone"
    store.retry(alone.lease, alone.wait, alone.error, soon(), version=alone.version)
    assert store.retry_many(retries, soon()) == [None] * 3
    found = other.acquire(4, 100)
    assert sorted(claim.row.key for claim in found) == ["alone", "one", "two"]
    assert {claim.row.last_error for claim in found} == {"broken"}


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("changed", [True, False])
def test_a_broken_row_is_put_off_alike_by_itself_and_with_others(
    store: ScheduleStore,
    schedules: ScheduleCollection,
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    together: bool,
    changed: bool,
) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=LONG_AGO, max_attempts=1)
    bench.write("key", cron="61 * * * *")
    retry_many = store.retry_many
    calls = itertools.count()

    def refused_after_a_change(retries: Sequence[Retry], until: float) -> Any:
        is_first = next(calls) == 0
        if changed and is_first:
            schedules["key"].modify(cron="30 * * * *")
        if together or not is_first:
            return retry_many(retries, until)
        raise TypeError("these cannot be retried together")

    monkeypatch.setattr(store, "retry_many", refused_after_a_change)
    worker = ScheduleCollection(store, LeaseTimes(300, Backoff(1, 2, 200, 0), 300), Defaults("UTC"))
    assert [task.attempts for task in worker.source.poll_multi(1, ahead=True)] == [1] * changed
    row = schedules["key"].metadata()
    if not changed:
        assert (row.status, row.attempts) == ("waiting", 0)
        assert 190 < row.next_run_time - store.now() <= 200


def test_a_change_whose_answer_was_lost_is_recognised_whatever_followed(
    store: ScheduleStore, other: ScheduleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client requests an extra run.

    The run has already ended when the client finds out whether the request succeeded.
    """
    worker = ScheduleCollection(other, LeaseTimes(300, 300, 300), Defaults("UTC"))
    worker.add("key", "t", cron="0 * * * *", next_time=FAR_OFF)
    seen = worker["key"].metadata()
    inner: Any = store
    is_redis = hasattr(inner, "_server")
    way = inner._server if is_redis else inner._database
    run = way.run

    def lost(work: Any, *arguments: Any) -> Any:
        run(work, *arguments)
        task = worker.poll()
        assert task is not None
        task.finish()
        return run((lambda _: work(True)) if is_redis else (lambda connection, _: work(connection, True)), *arguments)

    monkeypatch.setattr(way, "run", lost)
    assert store.modify(seen, run_now(seen, other.now()), RUN_NOW)
    monkeypatch.undo()
    assert worker.poll() is None
    assert not store.modify(seen, replace(seen, data={"stale": 1}))


def test_a_type_that_had_no_handler_waits_unless_it_was_changed_since(schedules: ScheduleCollection) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=LONG_AGO)
    task = schedules.poll()
    assert task is not None
    schedules["key"].modify(type="u")
    task.defer("no handler for the type 't'")
    again = schedules.poll()
    assert again is not None
    assert (again.type, again.attempts) == ("u", 1)
    again.defer("no handler for the type 'u'")
    assert schedules.poll() is None

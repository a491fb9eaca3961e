"""The lives of tasks: finished, failed, cancelled, forced, preempted, retried, deleted, purged."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from psched.errors import (
    AlreadyFinishedError,
    NotFoundError,
    NotSupportedError,
    PreemptedError,
    ScheduleError,
)
from psched.model import Claim, TaskFilter
from psched.store import TaskStore
from tests.stores.bench import FAR_OFF, LOST, eventually, keys_of, soon
from tests.stores.databases import DATABASES
from tests.stores.queue.bench import QueueBench, keys_in, row_of
from tests.stores.sent_statements import before_each


def finish(store: TaskStore, claim: Claim, retention: float = 100) -> None:
    store.retire(claim, "finished", None, retention, soon())


def test_a_finished_task_is_never_delivered_again(bench: QueueBench, store: TaskStore) -> None:
    bench.submit(store, ["key"], user="u", max_running=1)
    finish(store, bench.claim(store, "key"))
    row = row_of(store, "key")
    assert (row.status, row.due) == ("finished", None)
    assert store.acquire(10, 100) == []


def test_only_the_lease_holder_retires_a_task(bench: QueueBench, store: TaskStore, other: TaskStore) -> None:
    bench.submit(store, ["key"])
    stale = bench.claim(store, "key", bench.lease)
    claim = eventually(lambda: other.acquire(1, 100))[0]
    before = bench.raw("key")
    for verb in (lambda: finish(store, stale), lambda: store.update_data(stale, {"stale": 1}, soon())):
        with pytest.raises(PreemptedError):
            verb()
    assert bench.raw("key") == before
    finish(other, claim)


def test_a_lease_settles_once(bench: QueueBench, store: TaskStore) -> None:
    bench.submit(store, ["key"])
    claim = bench.claim(store, "key")
    finish(store, claim)
    before = bench.raw("key")
    verbs: list[Callable[[], object]] = [
        lambda: finish(store, claim),
        lambda: store.release(claim.lease, soon()),
        lambda: store.retry(claim.lease, 0, None, soon()),
        lambda: store.update_data(claim, {}, soon()),
    ]
    for verb in verbs:
        with pytest.raises(LOST):
            verb()
    assert store.extend([claim.lease], 100) == [None]
    assert bench.raw("key") == before


def test_data_is_written_under_the_lease_and_the_lease_stays(bench: QueueBench, store: TaskStore) -> None:
    bench.submit(store, ["key"], data={"n": 1}, type="type9")
    claim = bench.claim(store, "key")
    store.update_data(claim, {"n": 1, "progress": 40}, soon())
    assert (row_of(store, "key").data, row_of(store, "key").type) == ({"n": 1, "progress": 40}, "type9")
    (lease,) = store.extend([claim.lease], 200)
    assert lease is not None
    store.update_data(Claim(claim.row, lease), {"progress": 60}, soon())
    finish(store, Claim(claim.row, lease))
    assert row_of(store, "key").data == {"progress": 60}


def test_retried_and_released_tasks_come_again(bench: QueueBench, store: TaskStore) -> None:
    bench.submit(store, ["a", "b"])
    first, second = store.acquire(2, 100)
    store.release(first.lease, soon())
    store.retry(second.lease, 0, "it broke", soon())
    claims = {claim.row.key: claim.row for claim in store.acquire(2, 100)}
    assert sorted(claims) == ["a", "b"]
    if not bench.compat:
        assert (claims["a"].attempts, claims["b"].attempts, claims["b"].last_error) == (1, 2, "it broke")


@pytest.mark.parametrize("begun", [True, False])
def test_only_tasks_released_before_their_runs_began_keep_their_place(
    bench: QueueBench, store: TaskStore, begun: bool
) -> None:
    bench.submit(store, ["a", "b", "c", "d"])
    claims = store.acquire(2, 100, ahead=True)
    assert store.release_many([claim.lease for claim in claims], soon(), begun) == [None, None]
    keeps = not begun and not bench.compat  # the original's table does not keep when a row was due
    assert keys_of(store.acquire(3, 100)) == (["a", "b", "c"] if keeps else ["c", "d", "a"])


def test_a_task_leased_by_preempt_is_due_now_when_it_is_given_back(ours: QueueBench) -> None:
    store = ours.queue()
    ours.submit(store, ["later"], run_at=FAR_OFF)
    claim = store.preempt("later", 100)
    store.release(claim.lease, soon(), begun=False)
    assert ours.claim(store, "later").row.attempts == 1


def test_what_was_no_attempt_is_not_counted(bench: QueueBench, store: TaskStore) -> None:
    bench.submit(store, ["key"])
    store.retry(bench.claim(store, "key").lease, 0, "unknown here", soon(), counted=False)
    row = bench.claim(store, "key").row
    if not bench.compat:
        assert (row.attempts, row.last_error) == (1, "unknown here")


def test_a_retired_task_keeps_the_attempts_that_it_is_reported(ours: QueueBench) -> None:
    store = ours.queue()
    ours.submit(store, ["key"])
    claim = ours.claim(store, "key")
    store.retire(claim._replace(row=claim.row.attempted(7)), "failed", None, None, soon())
    assert row_of(store, "key").attempts == 7


def test_a_failed_task_is_kept_with_its_error_until_it_is_retried(ours: QueueBench) -> None:
    store = ours.queue()
    ours.submit(store, ["key", "other"], user="u", max_running=1)
    store.retire(ours.claim(store, "key"), "failed", "ValueError: no luck", None, soon())
    assert keys_in(store, status="failed") == ["key"]
    row = row_of(store, "key")
    assert (row.status, row.attempts, row.last_error) == ("failed", 1, "ValueError: no luck")
    assert store.purge(100) == 0
    store.retry_failed("key")
    claim = {claim.row.key: claim for claim in store.acquire(5, 100) + store.acquire(5, 100)}
    assert list(claim) == ["other"]
    finish(store, claim["other"])
    assert ours.claim(store, "key").row.attempts == 1


def test_what_is_not_retired_cannot_be_retried(ours: QueueBench) -> None:
    store = ours.queue()
    ours.submit(store, ["waits"])
    with pytest.raises(ScheduleError, match="'waits' is waiting"):
        store.retry_failed("waits")
    finish(store, ours.claim(store, "waits"))
    with pytest.raises(AlreadyFinishedError):
        store.retry_failed("waits")
    with pytest.raises(NotFoundError):
        store.retry_failed("none")


def test_rdb_compat_keeps_no_failed_tasks(bench: QueueBench, store: TaskStore) -> None:
    if not bench.compat:
        return
    bench.submit(store, ["key"])
    claim = bench.claim(store, "key")
    with pytest.raises(NotSupportedError):
        store.retire(claim, "failed", "error", None, soon())
    with pytest.raises(NotSupportedError):
        store.retry_failed("key")


def test_cancelling_a_waiting_task(bench: QueueBench, store: TaskStore) -> None:
    bench.submit(store, ["key"])
    store.cancel_request("key", 100)
    if bench.compat:  # Ruby's workers may run it still: see COMPAT
        assert bench.claim(store, "key").lease.cancel_requested
        return
    assert row_of(store, "key").status == "cancelled"
    assert store.acquire(10, 100) == []
    with pytest.raises(AlreadyFinishedError):
        store.cancel_request("key", 100)


def test_cancelling_a_running_task_tells_its_holder_at_the_next_heartbeat(
    bench: QueueBench, store: TaskStore, other: TaskStore
) -> None:
    bench.submit(store, ["key"])
    claim = bench.claim(store, "key")
    assert not claim.lease.cancel_requested
    other.cancel_request("key", 100)
    (lease,) = store.extend([claim.lease], 100)
    assert lease is not None
    assert lease.cancel_requested
    store.retire(Claim(claim.row, lease), "cancelled", None, 100, soon())
    assert row_of(store, "key").status == ("finished" if bench.compat else "cancelled")


def test_a_task_that_comes_back_after_its_cancel_says_so_when_acquired(bench: QueueBench, store: TaskStore) -> None:
    bench.submit(store, ["key"])
    claim = bench.claim(store, "key")
    store.cancel_request("key", 100)
    store.retry(claim.lease, 0, None, soon())
    assert bench.claim(store, "key").lease.cancel_requested


def test_a_task_that_is_not_as_it_was_selected_is_not_changed(bench: QueueBench, store: TaskStore) -> None:
    bench.submit(store, ["waits"], user="u")
    bench.submit(store, ["runs"], user="u")
    bench.claim(store, "runs")
    kind = row_of(store, "waits").type
    before = bench.raw("waits"), bench.raw("runs")
    for key, wanted in (
        ("waits", TaskFilter("running")),
        ("runs", TaskFilter("waiting")),
        ("waits", TaskFilter("waiting", "another")),
        ("waits", TaskFilter("waiting", kind, "another")),
    ):
        with pytest.raises(ScheduleError, match="nothing was changed"):
            store.cancel_request(key, 100, wanted)
        with pytest.raises(ScheduleError, match="nothing was changed"):
            store.delete(key, wanted)
    assert (bench.raw("waits"), bench.raw("runs")) == before
    store.cancel_request("runs", 100, TaskFilter("running", kind, "u"))
    assert row_of(store, "runs").cancel_requested
    store.delete("waits", TaskFilter("waiting", kind, "u"))
    assert store.get("waits") is None
    with pytest.raises(NotFoundError):
        store.delete("waits", TaskFilter("waiting"))
    if not bench.compat:
        bench.submit(store, ["cancelled"])
        store.cancel_request("cancelled", 100, TaskFilter("waiting"))
        with pytest.raises(ScheduleError, match="nothing was changed"):
            store.retry_failed("cancelled", TaskFilter("failed"))
        store.retry_failed("cancelled", TaskFilter("cancelled"))


def test_a_forced_finish_preempts_the_run(bench: QueueBench, store: TaskStore, other: TaskStore) -> None:
    bench.submit(store, ["running", "waiting"])
    claim = bench.claim(store, "running")
    for key in ("running", "waiting"):
        other.force_finish(key, 100)
        assert row_of(store, key).status == "finished"
        with pytest.raises(AlreadyFinishedError):
            other.force_finish(key, 100)
    with pytest.raises(LOST):
        finish(store, claim)
    assert store.extend([claim.lease], 100) == [None]
    with pytest.raises(NotFoundError):
        other.force_finish("none", 100)


def test_preempting_takes_the_lease_from_its_holder(bench: QueueBench, store: TaskStore, other: TaskStore) -> None:
    bench.submit(store, ["key"])
    claim = bench.claim(store, "key", 100)
    preempted = other.preempt("key", 100)
    assert preempted.row.key == "key"
    assert store.extend([claim.lease], 100) == [None]
    with pytest.raises(PreemptedError):
        finish(store, claim)
    finish(other, preempted)
    for key, error in (("key", AlreadyFinishedError), ("none", NotFoundError)):
        with pytest.raises(error):
            other.preempt(key, 100)


def test_deleting_ends_a_run_and_frees_the_key(bench: QueueBench, store: TaskStore, other: TaskStore) -> None:
    bench.submit(store, ["key"])
    claim = bench.claim(store, "key")
    other.delete("key")
    with pytest.raises(NotFoundError):
        finish(store, claim)
    bench.submit(store, ["key"])
    with pytest.raises(LOST):
        finish(store, claim)
    with pytest.raises(NotFoundError):
        store.delete("none")


def test_a_key_goes_after_its_retention_and_not_before(bench: QueueBench, store: TaskStore) -> None:
    bench.submit(store, [f"key{n}" for n in range(6)])
    for n, claim in enumerate(store.acquire(6, 100)):
        finish(store, claim, 0 if n < 4 else 100)
    assert [store.purge(3), store.purge(3), store.purge(3)] == [3, 1, 0]
    assert keys_in(store) == ["key4", "key5"]


def test_the_users_of_purged_tasks_are_forgotten_and_come_back(ours: QueueBench) -> None:
    store = ours.queue()
    ours.submit(store, ["a", "b"], user="u", max_running=1)
    finish(store, ours.claim(store, "a"), 0)
    assert store.purge(10) == 1
    assert keys_of(store.acquire(10, 100)) == ["b"]


def test_what_a_dead_holder_had_is_given_back(ours: QueueBench) -> None:
    store, dead = ours.queue(), ours.queue("host/9/dead")
    ours.submit(store, ["a", "b"], user="u", max_running=2)
    assert keys_of([*dead.acquire(1, 100), *dead.acquire(1, 100)]) == ["a", "b"]
    assert store.acquire(2, 100) == []
    assert store.give_back("host/9/dead", [], 100) == 2
    assert keys_of([*store.acquire(1, 100), *store.acquire(1, 100)]) == ["a", "b"]


def test_only_the_named_tasks_of_a_dead_holder_are_given_back(bench: QueueBench) -> None:
    """Only these tasks reduce their user's number of running tasks."""
    store, dead = bench.queue(), bench.queue("host/9/dead")
    names = {} if bench.compat else {"user": "u", "max_running": 2}
    bench.submit(store, ["a", "b"], **names)
    claims = [*dead.acquire(1, 100), *dead.acquire(1, 100)]
    assert keys_of(claims) == ["a", "b"]
    bench.submit(store, ["c", "d"], **names)
    held = [] if bench.compat else ["a", "b"]
    assert sorted(store.held_claims("host/9/dead")) == held
    before = bench.raw("a")
    assert store.give_back("host/9/dead", ["a"], 100, claims={"b": claims[1].lease.claim, "c": 0}) == len(held[1:])
    assert bench.raw("a") == before
    if bench.compat:
        return
    assert list(store.held_claims("host/9/dead")) == ["a"]
    taken = keys_of([*store.acquire(1, 100), *store.acquire(1, 100)])
    assert taken == ["c"], "there is room for one, and the one that was given back is due now, after the others"


@pytest.mark.parametrize("ours", DATABASES, indirect=True)
def test_a_failed_task_that_is_retried_while_old_tasks_are_purged_stays(ours: QueueBench) -> None:
    store, other = ours.queue(), ours.queue()
    ours.submit(store, ["key"])
    store.retire(ours.claim(store, "key"), "failed", "error", 0.001, soon())
    time.sleep(0.01)

    def retry_first(statement: str) -> None:
        if statement.startswith("DELETE") and row_of(other, "key").status == "failed":
            other.retry_failed("key")

    with before_each(retry_first):
        assert store.purge(100) == 0
    assert row_of(store, "key").status == "waiting"

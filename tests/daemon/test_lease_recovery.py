"""When the master forks a recovery child for the leases of dead workers, and when it gives up."""

from __future__ import annotations

import math
from contextlib import closing

import pytest

from psched.application import ApplicationSpec
from psched.config import coerce
from psched.process.child_base import ChildBase
from psched.process.child_protocol import FORCED
from psched.process.child_spec import ChildSpec
from psched.process.dead_child import DeadChild
from psched.process.dispatch_socket import DispatchSocket
from psched.process.running_table import RunningTable
from psched.supervisor.lease_recovery import LeaseRecovery
from tests.daemon.fake_children import fake_process_table

SETTINGS = coerce({"app": "a:b", "schedules": {"type": "rdb", "url": "sqlite://"}})


def test_a_stop_waits_for_one_recovery_child_however_many_workers_have_died(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with fake_process_table() as process_table:
        recovery = LeaseRecovery(process_table)
        begun = process_table.now
        recovery.add([DeadChild("first", ())])
        recovery.tick(begun, SETTINGS, last=False)
        recovery.add([DeadChild("second", ())])
        for now in (begun + 1.0, begun + 3.0, begun + 3.1):
            process_table.tick(now)
            recovery.tick(now, SETTINGS, last=True)
    assert recovery.done
    assert len(process_table.forked) == 1
    reason = "the recovery process was killed by SIGKILL (it did not exit in time)"
    assert f"cannot release the leases of 2 dead children: {reason}; the leases end after alive_time" in caplog.text


def test_the_leases_of_a_dead_fetching_child_wait_for_the_next_one() -> None:
    fetcher, worker = DeadChild("node", child="w0", is_fetcher=True), DeadChild("node", child="w1")
    with fake_process_table() as process_table:
        recovery = LeaseRecovery(process_table)
        recovery.add([fetcher])
        recovery.tick(process_table.now, SETTINGS, last=False)
        assert process_table.forked == []
        assert recovery.deadline == math.inf
        recovery.add([worker])
        recovery.tick(process_table.now, SETTINGS, last=False)
        assert len(process_table.forked) == 1
        assert recovery.claim() == (worker, fetcher)


def test_at_the_end_of_a_stop_the_leases_of_a_dead_fetching_child_are_released_like_others() -> None:
    with fake_process_table() as process_table:
        recovery = LeaseRecovery(process_table)
        recovery.add([DeadChild("node", child="w0", is_fetcher=True)])
        recovery.tick(process_table.now, SETTINGS, last=True)
        assert len(process_table.forked) == 1


def test_the_next_worker_also_learns_of_a_dead_worker_whose_runs_a_recovery_child_releases() -> None:
    """Only the fetching child knows which tasks were waiting in the dead worker."""
    worker, alone = DeadChild("node", child="w1"), DeadChild("single")
    with fake_process_table() as process_table:
        recovery = LeaseRecovery(process_table)
        recovery.add([worker, alone])
        recovery.tick(process_table.now, SETTINGS, last=False)
        assert recovery.claim() == (worker,)
        recovery.tick(process_table.now, SETTINGS, last=True)
        assert len(process_table.forked) == 1


def test_a_recovery_child_that_fails_is_repeated_once_for_each_dead_worker() -> None:
    worker = DeadChild("node", child="w1")
    with fake_process_table() as process_table:
        recovery = LeaseRecovery(process_table)
        now = process_table.now
        recovery.add([worker])
        recovery.tick(now, SETTINGS, last=False)
        process_table.tick(now + 3.1)
        recovery.tick(now + 3.1, SETTINGS, last=False)
        assert recovery.claim() == (worker,)


def test_a_stop_releases_what_waited_in_a_dead_worker_without_successor() -> None:
    with fake_process_table() as process_table:
        recovery = LeaseRecovery(process_table)
        now = process_table.now
        recovery.add([DeadChild("node", child="w1")])
        recovery.tick(now, SETTINGS, last=False)
        child = process_table.forked[0]
        child.recovered, child.code = True, 0
        assert recovery.done is False
        recovery.tick(now, SETTINGS, last=True)
        assert len(process_table.forked) == 2


def test_when_no_child_of_a_configuration_is_left_all_leases_of_their_holder_are_released() -> None:
    with fake_process_table() as process_table, closing(DispatchSocket("old")) as dispatch:
        recovery = LeaseRecovery(process_table)
        now, application = process_table.now, ApplicationSpec(("a:b",))
        spec = ChildSpec(1, SETTINGS, application, "old", (), RunningTable(1), "w1", dispatch, (), "alerts")
        worker = process_table.fork("worker 1", SETTINGS, lambda pipe: ChildBase(), spec)
        worker.ready, worker.code = True, -9
        recovery.child_ended(worker, spec)
        assert [dead.child for dead in recovery.claim()] == ["w1"]
        recovery.tick(now, SETTINGS, False, {"old", "new"})
        assert recovery.done
        recovery.tick(now, SETTINGS, False, {"new"})
        assert [child.name for child in process_table.forked] == ["worker 1", "lease recovery"]
        recovery.tick(now, SETTINGS, False, {"new"})
        assert len(process_table.forked) == 2


def test_the_next_worker_learns_of_a_worker_that_has_released_all_its_leases_by_force() -> None:
    """The fetching child must forget this worker. No recovery child is needed, even at the end of a stop."""
    with fake_process_table() as process_table, closing(DispatchSocket("node")) as dispatch:
        recovery = LeaseRecovery(process_table)
        application = ApplicationSpec(("a:b",))
        spec = ChildSpec(1, SETTINGS, application, "node", (), RunningTable(1), "w1", dispatch, (), "alerts")
        worker = process_table.fork("worker 1", SETTINGS, lambda pipe: ChildBase(), spec)
        worker.ready, worker.empty, worker.code = True, True, FORCED
        recovery.child_ended(worker, spec)
        assert recovery.done
        recovery.tick(process_table.now, SETTINGS, False, {"node"})
        assert [(dead.child, dead.claims) for dead in recovery.claim()] == [("w1", ())]
        assert recovery.claim() == ()
        recovery.child_ended(worker, spec)
        recovery.tick(process_table.now, SETTINGS, True, {"node"})
        assert process_table.forked == [worker]

"""When the master forks a recovery child for the leases of dead workers, and when it gives up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from psched.config import coerce
from psched.process.child_interface import DeadChild
from psched.supervisor.lease_recovery import LeaseRecovery

SETTINGS = coerce({"app": "a:b", "schedules": {"type": "rdb", "url": "sqlite://"}})


class FakeProcessTable:
    """Records recovery children that do nothing until they are killed."""

    def __init__(self) -> None:
        self.forked: list[Any] = []

    def fork(self, *_: object) -> Any:
        recovery_child = SimpleNamespace(gone=False, gave_back=False, start_error=None, end="was killed")
        recovery_child.kill = lambda: setattr(recovery_child, "gone", True)
        self.forked.append(recovery_child)
        return recovery_child


def test_a_stop_waits_for_one_recovery_child_however_many_workers_have_died(
    caplog: pytest.LogCaptureFixture,
) -> None:
    process_table = FakeProcessTable()
    recovery = LeaseRecovery(cast("Any", process_table))
    recovery.add([DeadChild("first", ())])
    recovery.tick(0.0, SETTINGS, last=False)
    recovery.add([DeadChild("second", ())])
    for now in (1.0, 3.0, 3.1):
        recovery.tick(now, SETTINGS, last=True)
    assert recovery.done
    assert len(process_table.forked) == 1
    assert (
        "leases of 2 dead workers are not given back: the recovery process was killed; they end by themselves"
        in caplog.text
    )

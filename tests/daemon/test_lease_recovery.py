"""When the master has what the dead held given back, and when it lets that be. With a nursery of the test's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from psched.config import coerce
from psched.process.child_spec import DeadChild
from psched.process.logs import Log
from psched.supervisor.lease_recovery import DeadChildren, LeaseRecovery

SETTINGS = coerce({"app": "a:b", "schedules": {"type": "rdb", "url": "sqlite://"}})


class Nursery:
    """Forks heirs that do nothing until they are killed."""

    def __init__(self) -> None:
        self.heirs: list[Any] = []

    def fork(self, *_: object) -> Any:
        recovery_child = SimpleNamespace(gone=False, gave_back=False, why=None, end="was killed")
        recovery_child.kill = lambda: setattr(recovery_child, "gone", True)
        self.heirs.append(recovery_child)
        return recovery_child


def test_a_stop_waits_for_one_heir_whose_database_does_not_answer_however_many_have_died(
    caplog: pytest.LogCaptureFixture,
) -> None:
    process_table, dead_children = Nursery(), DeadChildren()
    executor = LeaseRecovery(dead_children, cast("Any", process_table), Log(None))
    dead_children.leave([DeadChild("first", ())])
    executor.tick(0.0, SETTINGS, last=False)
    dead_children.leave([DeadChild("second", ())])
    for now in (1.0, 3.0, 3.1):
        executor.tick(now, SETTINGS, last=True)
    assert executor.done
    assert len(process_table.heirs) == 1
    assert (
        "leases of 2 dead workers are not given back: the process for it was killed; they end by themselves"
        in caplog.text
    )

"""psched's classes of threads do not use the private names of threading.Thread."""

from __future__ import annotations

import threading

import pytest

from psched.child.heartbeat_and_control import ControlThread
from psched.execution.alerts import AlertThread
from psched.execution.periodic_thread import PeriodicThread


@pytest.mark.parametrize("kind", [ControlThread, AlertThread, PeriodicThread])
def test_no_private_method_of_a_thread_is_replaced(kind: type[threading.Thread]) -> None:
    private = {name for name in vars(threading.Thread) if name.startswith("_") and not name.startswith("__")}
    assert not private & vars(kind).keys()

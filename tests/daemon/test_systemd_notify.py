"""The master's reports to systemd: datagrams as in sd_notify(3), to both kinds of socket."""

from __future__ import annotations

import math
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from psched.supervisor.systemd import Notifier


@pytest.fixture(params=["path", "abstract"] if sys.platform == "linux" else ["path"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[socket.socket]:
    """The service manager's socket, which receives the reports."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify") if request.param == "path" else f"\0psched-test-{os.getpid()}")
        listener.settimeout(5)
        yield listener


def _address(manager: socket.socket) -> str:
    name = manager.getsockname()
    return "@" + name[1:].decode() if isinstance(name, bytes) else str(name)


def _heard(manager: socket.socket) -> list[str]:
    return manager.recv(4096).decode().split("\n")


def test_each_state_is_one_datagram(manager: socket.socket) -> None:
    notifier = Notifier(_address(manager))
    notifier.notify(READY=1, STATUS="3 workers")
    assert _heard(manager) == ["READY=1", "STATUS=3 workers"]
    notifier.notify(STOPPING=1)
    assert _heard(manager) == ["STOPPING=1"]
    notifier.notify(WATCHDOG=1)
    assert _heard(manager) == ["WATCHDOG=1"]
    notifier.notify(MAINPID=4711)
    assert _heard(manager) == ["MAINPID=4711"]


def test_reloading_carries_the_time_it_began(manager: socket.socket) -> None:
    Notifier(_address(manager)).reloading()
    reloading, since = _heard(manager)
    assert reloading == "RELOADING=1"
    assert since.startswith("MONOTONIC_USEC=")
    assert int(since.partition("=")[2]) > 0


def test_a_status_of_several_lines_cannot_add_assignments(manager: socket.socket) -> None:
    Notifier(_address(manager)).notify(STATUS="running s1\nMAINPID=1")
    assert _heard(manager) == ["STATUS=running s1 MAINPID=1"]


def test_handlers_do_not_inherit_the_socket() -> None:
    environ = {
        "NOTIFY_SOCKET": "/run/notify",
        "WATCHDOG_USEC": "3000000",
        "WATCHDOG_PID": str(os.getpid()),
        "HOME": "/",
    }
    Notifier.from_environment(environ)
    assert environ == {"HOME": "/"}


def test_a_binary_upgrade_hands_everything_on_but_the_pid() -> None:
    environ = {"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}
    notifier = Notifier.from_environment(environ)
    handed_on = notifier.environment()
    assert handed_on == {"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": "3000000"}
    assert Notifier.from_environment(handed_on) == notifier


@pytest.mark.parametrize(
    ("variables", "interval"),
    [
        ({"WATCHDOG_USEC": "3000000"}, 1.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_fed_three_times_as_often_as_asked(variables: dict[str, str], interval: float | None) -> None:
    assert Notifier.from_environment({"NOTIFY_SOCKET": "/run/notify", **variables}).watchdog_interval == interval


@pytest.mark.parametrize("address", ["", "vsock:2:1234", "relative"])
def test_without_a_socket_nothing_happens(address: str) -> None:
    notifier = Notifier.from_environment({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "3000000"})
    notifier.notify(READY=1)
    assert notifier == Notifier(None, 3_000_000)
    assert notifier.watchdog_interval is None
    assert notifier.environment() == {"WATCHDOG_USEC": "3000000"}


def test_a_manager_that_is_gone_is_logged_once_and_harms_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notifier = Notifier(str(tmp_path / "nobody"))
    notifier.notify(READY=1)
    notifier.notify(WATCHDOG=1)
    assert [record.getMessage() for record in caplog.records] == [
        f"cannot notify systemd at {tmp_path / 'nobody'}: [Errno 2] No such file or directory; the daemon continues"
    ]


def test_a_master_that_was_upgraded_does_not_wake_for_the_watchdog_any_more(manager: socket.socket) -> None:
    notifier = Notifier(_address(manager), watchdog_usec=3_000_000)
    notifier.tick(100.0, "idle")
    assert notifier.deadline == 101.0
    notifier.address = None  # from now on the new master reports
    notifier.tick(102.0, "idle")
    assert notifier.deadline == math.inf

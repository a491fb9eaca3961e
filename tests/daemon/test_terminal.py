"""A master on a terminal: Ctrl-C, a resized window, a closed window."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import termios
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from tests.daemon.harness import Daemon
from tests.daemon.test_signals import HEEDED

Make = Callable[..., Daemon]


class Terminal:
    """A pseudo-terminal with the daemon's master as its foreground process."""

    def __init__(self, daemon: Daemon) -> None:
        self._descriptor, slave = pty.openpty()
        daemon.start(
            stdin=slave,
            stdout=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(slave, termios.TIOCSCTTY, 0),
        )
        os.close(slave)

    def press_ctrl_c(self) -> None:
        os.write(self._descriptor, b"\x03")

    def resize(self) -> None:
        termios.tcsetwinsize(self._descriptor, (50, 132))

    def close(self) -> None:
        with suppress(OSError):  # closed before
            os.close(self._descriptor)


@pytest.fixture
def prepared(make_daemon: Make) -> Daemon:
    return make_daemon(child_kill_interval=HEEDED)


@pytest.fixture
def terminal(prepared: Daemon) -> Iterator[Terminal]:
    terminal = Terminal(prepared)
    yield terminal
    terminal.close()


def test_ctrl_c_stops_gracefully_and_a_second_one_at_once(prepared: Daemon, terminal: Terminal) -> None:
    prepared.add("s1", "heed")
    prepared.wait_for_trace("began")
    terminal.press_ctrl_c()
    prepared.wait_for_log("stopping when the running tasks are done")
    assert not prepared.traces("stopped"), "children are not in the terminal's foreground group"
    terminal.press_ctrl_c()
    assert prepared.end() == 0
    assert prepared.traces("stopped")


def test_a_resized_window_starts_no_upgrade(prepared: Daemon, terminal: Terminal) -> None:
    terminal.resize()
    prepared.signal(signal.SIGUSR2)
    prepared.wait_for_log("received SIGUSR2")
    prepared.add("s1", "quick")
    prepared.wait_for_trace("ran")
    assert "a new master" not in prepared.log
    prepared.stop()


def test_a_closed_terminal_stops_gracefully(prepared: Daemon, terminal: Terminal) -> None:
    prepared.add("s1", "wait")
    prepared.wait_for_trace("began")
    terminal.close()
    prepared.wait_for_log("stopping when the running tasks are done")
    prepared.go("s1")
    assert prepared.end() == 0
    assert prepared.traces("ended")


def test_hup_on_an_open_terminal_reloads(prepared: Daemon, terminal: Terminal) -> None:
    prepared.signal(signal.SIGHUP)
    prepared.wait_for_log("reloading now")
    prepared.stop()
    terminal.close()

"""psched top: shows live on a terminal the running tasks, the next tasks, the late tasks, and the rates.

A thread asks the database, so that keys work even if the database does not answer. Signals only wake the main thread,
which restores the terminal before it ends.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

import click

from psched.backends import database_problem, is_driver_error
from psched.cli.option_types import seconds
from psched.cli.options import Chosen, common_options
from psched.cli.top_lines import STYLES, View, screen
from psched.cli.top_snapshot import ScreenData, read_snapshot
from psched.clock import monotonic
from psched.config import Settings
from psched.errors import ConfigError
from psched.insight import Insight, open_insight

if TYPE_CHECKING:
    from rich.live import Live

_SLOW = 3.0
"""If the database does not answer for this many seconds, the screen says so."""
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OTHERS = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)


@click.command("top")
@click.option(
    "--interval", type=seconds(0.5, 3600), default=2.0, show_default=True, help="Seconds between two updates."
)
@common_options()
def top(chosen: Chosen, interval: float) -> int:
    """Show live what runs, what runs next, what is late, and the rates of each type.

    Fills the terminal until you press q. The keys r, n, l and t show one list: running, next, late, types; a shows all.
    Tab selects a list; s sorts that list by the next of its columns, and S reverses the order. / filters all lists by a
    word. The space bar freezes the screen. Rates and percentiles are of the runs that ended in the last 5 minutes. A
    task is late after a minute, a schedule when it is overdue (see `psched list --help`). If the database does not
    answer, the last numbers stay until it does.
    """
    if chosen.json:
        raise click.UsageError("psched top has no --json; use psched stats, psched queue stats or psched nodes")
    settings = chosen.settings()
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        raise ConfigError(
            "psched top needs standard input and output on a terminal that can move its cursor; "
            "psched stats, psched queue stats and psched nodes --running print the same numbers once"
        )
    with open_insight(settings) as insight:
        return _Screen(settings, insight, interval).run()


class _InsightReader(threading.Thread):
    """Every `interval` seconds, queries the database and then writes a byte to `wake`, until `end` is called."""

    def __init__(self, settings: Settings, insight: Insight, interval: float, wake: int) -> None:
        super().__init__(name="psched top", daemon=True)
        self.snapshot: ScreenData | None = None
        self.problem: str | None = None
        self.bug: Exception | None = None
        self.asked = monotonic()
        self.is_asking = True
        self._urls = ", ".join(section.masked_url for section in settings.sections)
        self._insight = insight
        self._interval = interval
        self._wake = wake
        self._ended = threading.Event()
        self._writing = threading.Lock()

    def end(self) -> None:
        """End the thread soon, and never write to `wake` again.

        After this call the descriptor `wake` may be closed. Its number may then soon belong to another file, such as a
        connection to the database, which must not get the byte.
        """
        with self._writing:
            self._ended.set()

    def run(self) -> None:
        while not self._ended.is_set():
            self.asked, self.is_asking = monotonic(), True
            try:
                if self.snapshot is None:
                    self._insight.check_tables()
                self.snapshot, self.problem = read_snapshot(self._insight), None
            except ConfigError as error:
                self.problem = str(error)
            except Exception as error:  # noqa: BLE001 – the main thread raises it
                if is_driver_error(error):
                    self.problem = database_problem(self._urls, error, self._insight.is_unavailable(error))
                else:
                    self.bug = error
            self.is_asking = False
            with self._writing, suppress(OSError):
                if not self._ended.is_set():
                    os.write(self._wake, b"\0")
            self._ended.wait(self._interval)


class _Screen:
    """The terminal while it shows the lists. Used by the main thread only."""

    def __init__(self, settings: Settings, insight: Insight, interval: float) -> None:
        self._name = f"{settings.path}:{settings.environment}"
        self._settings = settings
        self._insight = insight
        self._interval = interval
        self._view = View()
        self._frozen: ScreenData | None = None

    def run(self) -> int:
        """Show the lists until q or a signal. Return 0 after q, or 128 plus the number of the signal, as shells do."""
        with ExitStack() as stack:
            reading, writing = os.pipe()
            stack.callback(os.close, reading)
            for end in (reading, writing):
                os.set_blocking(end, False)
            stack.enter_context(_woken_by_signals(writing))
            reader = _InsightReader(self._settings, self._insight, self._interval, writing)
            stack.callback(reader.end)
            stack.enter_context(_silenced_logs())
            with _full_screen() as live:
                reader.start()
                return self._loop(reader, live, reading)

    def _loop(self, reader: _InsightReader, live: Live, signals: int) -> int:
        terminal = sys.stdin.fileno()
        while True:
            if reader.bug is not None:
                raise reader.bug
            self._draw(reader, live)
            ready, _, _ = select.select([terminal, signals], [], [], 1.0)
            if signals in ready:
                for number in os.read(signals, 512):
                    if number in _ENDING:
                        return 128 + number
                    if number == signal.SIGTSTP:
                        _suspend(live)
            if terminal in ready:
                keys = os.read(terminal, 64).decode(errors="ignore")
                if not keys:
                    return 128 + signal.SIGHUP
                if keys.startswith("\x1b") and len(keys) > 1:
                    continue  # an arrow or function key
                if any(self._view.press(key) for key in keys):
                    return 0

    def _draw(self, reader: _InsightReader, live: Live) -> None:
        from rich.text import Text  # noqa: PLC0415 – as in _full_screen

        self._frozen = (self._frozen or reader.snapshot) if self._view.frozen else None
        problem = reader.problem
        waited = monotonic() - reader.asked
        if problem is None and reader.is_asking and waited > _SLOW:
            problem = f"the database has not answered for {waited:.0f} s"
        if problem is not None and reader.snapshot is not None:
            problem = f"{problem}; the numbers below are old"
        size = live.console.size
        lines = screen(
            self._frozen or reader.snapshot,
            self._view,
            size.width,
            size.height,
            name=self._name,
            interval=self._interval,
            problem=problem,
        )
        text = Text("\n").join(Text(line.text, STYLES[line.style], no_wrap=True, end="") for line in lines)
        live.update(text, refresh=True)


@contextmanager
def _full_screen() -> Iterator[Live]:
    """Switch the terminal to the full screen. Restore it in any case when the context ends."""
    from rich.console import Console  # noqa: PLC0415 – takes 50 ms, which other commands need not wait for
    from rich.live import Live  # noqa: PLC0415

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    live = Live(console=Console(), screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    try:
        tty.setcbreak(terminal)
        live.start()
        yield live
    finally:
        with suppress(OSError, termios.error):  # the window may have been closed
            live.stop()
        with suppress(OSError, termios.error):
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _suspend(live: Live) -> None:
    """Suspend the process for Ctrl-Z with the terminal restored.

    Take the terminal again when the shell continues the process.
    """
    terminal = sys.stdin.fileno()
    ours = termios.tcgetattr(terminal)
    live.stop()
    ordinary = [*ours]
    ordinary[3] |= termios.ICANON | termios.ECHO
    termios.tcsetattr(terminal, termios.TCSADRAIN, ordinary)
    os.kill(os.getpid(), signal.SIGSTOP)
    termios.tcsetattr(terminal, termios.TCSADRAIN, ours)
    live.start()


@contextmanager
def _woken_by_signals(descriptor: int) -> Iterator[None]:
    """Write the number of each signal to `descriptor`, and do nothing else. Close the descriptor at the end."""

    def nothing(number: int, frame: FrameType | None) -> None:
        """Do nothing, because Python has already written the signal's number to the descriptor."""

    before = {number: signal.getsignal(number) for number in (*_ENDING, *_OTHERS)}
    old = signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, nothing)
    try:
        yield
    finally:
        signal.set_wakeup_fd(old)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(descriptor)


@contextmanager
def _silenced_logs() -> Iterator[None]:
    """Suppress log warnings on the screen. The screen itself shows problems of the database."""
    nowhere = logging.NullHandler()
    logging.getLogger().addHandler(nowhere)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(nowhere)

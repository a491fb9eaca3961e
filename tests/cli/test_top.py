"""`psched top`: its screen, the keys that change the screen, and that the terminal is restored after any end."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from unittest.mock import Mock

import pytest
from rich.cells import cell_len

from faultlab.laboratory import Lab
from faultlab.redis import Redis
from psched import open as open_psched
from psched.cli.top import _InsightReader
from psched.cli.top_lines import View, screen
from psched.cli.top_snapshot import Row, ScreenData, read_snapshot
from psched.clock import boottime
from psched.config import Settings, load
from psched.insight import open_insight
from psched.store.counts import Counted
from psched.store.node_registry import Announcement, NodeProcess, NodeRun, encode_processes
from psched.store.type_filter import TypeFilter
from tests.cli.commands import Commands

PATIENCE = 60.0
END_OF_40 = "q quit  r n l t one list  a all  Tab ne…\x1b[0m"
"""The end of a screen that is 40 columns wide."""


def row(key: str, seconds: float, is_bad: bool = False) -> Row:
    return Row(
        (key, "mail", "node", "worker 1", f"{seconds:.0f} s"), (key, "mail", "node", "worker 1", seconds), is_bad
    )


def snapshot(rows: int) -> ScreenData:
    types = [Row(("mail", *"1234567", f"{n} s"), ("mail", *range(7), n)) for n in range(rows)]
    many = [row(f"key {n} {'x' * 200}\x1b[2J", n) for n in range(rows)]
    lines = {"RUNNING": many, "NEXT": many, "LATE": many, "TYPES": types}
    return ScreenData(1_800_000_000.0, {"total": Counted(10_000, True)}, {"due": Counted(3)}, 2, 1, lines, frozenset())


def text(view: View, width: int = 80, height: int = 24, rows: int = 50, problem: str | None = None) -> list[str]:
    found = screen(snapshot(rows), view, width, height, name="production", interval=2, problem=problem)
    return [line.text for line in found]


@pytest.mark.parametrize("problem", [None, "the database is away " * 20])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (30, 8), (1, 1)])
def test_the_screen_fits_the_terminal(width: int, height: int, problem: str | None) -> None:
    lines = text(View(), width, height, problem=problem)
    assert len(lines) == height
    assert max(cell_len(line) for line in lines) <= width
    assert "\x1b" not in "".join(lines), "a key does not move the cursor"


def test_all_lists_share_a_terminal_of_80_by_24() -> None:
    lines = text(View())
    headers = [line.split(":")[0] for line in lines if re.match(r"[A-Z]+ 50", line)]
    assert headers == ["RUNNING 50", "NEXT 50", "LATE 50", "TYPES 50"]
    assert "10,000+ total" in lines[1]
    assert "2 alive · 1 vanished" in lines[3]


def test_a_list_that_is_cut_says_so(psched: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psched.cli.top_snapshot._ROWS", 2)
    path = psched.folder / "etc" / "psched.yml"
    with open_psched(path) as schedules, open_insight(load(path, "development")) as insight:
        for number in range(3):
            assert read_snapshot(insight).full == frozenset()
            schedules.add(f"k{number}", "t", cron="0 0 1 1 *")
        assert read_snapshot(insight).full == {"NEXT"}


def test_nothing_is_written_to_the_wakeup_descriptor_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The screen has closed the descriptor by then.

    Its number may already belong to a new connection or to a database file.
    """
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    settings, insight = Settings(environment="test"), Mock()
    reader = _InsightReader(settings, insight, 60, writing)
    insight.check_tables.side_effect = reader.end
    monkeypatch.setattr("psched.cli.top.read_snapshot", Mock())
    reader.start()
    reader.join(PATIENCE)
    with pytest.raises(BlockingIOError):
        os.read(reading, 1)
    for end in (reading, writing):
        os.close(end)


def pressed(keys: str) -> View:
    view = View()
    assert not any(view.press(key) for key in keys)
    return view


def test_keys_sort_filter_and_choose_a_list() -> None:
    first = [line for line in text(pressed("r")) if line.startswith("key")]
    assert len(first) == 18, "one list fills the screen"
    assert first[0].startswith("key 49 "), "the longest run comes first"
    assert next(line for line in text(pressed("rS")) if line.startswith("key")).startswith("key 0 ")
    by_key = [line for line in text(pressed("rs")) if line.startswith("key")]
    assert by_key[0].startswith("key 9 ")
    found = text(pressed("r/Y 4\x7f42\r"))
    assert [line[:6] for line in found if line.startswith("key")] == ["key 42"]
    assert "filter: Y 42" in found[0]
    assert "RUNNING 50" in "".join(text(pressed("r/42\r\x1b"))), "Esc shows everything again"
    assert pressed("/q").filter == "q", "a letter of the filter is no command"
    assert View().press("q")


class Terminal:
    """A pseudo-terminal of 80 by 24 characters, in which `psched top` runs."""

    def __init__(self, commands: Commands) -> None:
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, 80))
        self._slave = slave
        self.before = termios.tcgetattr(slave)
        self._seen = ""
        size_of_terminal = {"COLUMNS": "", "LINES": ""}  # pytest-xdist sets both
        self.process = commands.start(
            *("top", "--interval", "0.5"),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={"TERM": "xterm", **size_of_terminal},
        )

    def resize(self, width: int) -> None:
        termios.tcsetwinsize(self._slave, (24, width))
        self.process.send_signal(signal.SIGWINCH)

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait_for(self, words: str) -> str:
        """Wait until the process has written `words`.

        Return what it wrote before them; a later call does not see that again.
        """
        end = time.monotonic() + PATIENCE
        while words not in self._seen:
            assert time.monotonic() < end, self._seen[-2000:]
            if select.select([self._master], [], [], 0.2)[0]:
                self._seen += os.read(self._master, 65536).decode(errors="replace")
        before, _, self._seen = self._seen.partition(words)
        return before

    def wait_for_screen(self, *words: str, without: str = "\0") -> str:
        """Wait for a screen of 40 columns that shows all `words`, and return the screen.

        `without`: must not be on the screen.
        """
        while True:
            shown = self.wait_for(END_OF_40)
            if all(word in shown for word in words) and without not in shown:
                lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown).splitlines()
                assert max(map(cell_len, lines)) <= 40
                return shown

    def end(self) -> int:
        """Wait for the end of the process, check that the terminal is restored, and return the exit code."""
        self.wait_for("\x1b[?1049l")  # leaves the second screen, behind "\x1b[?25h", which shows the cursor
        code = self.process.wait(PATIENCE)
        assert termios.tcgetattr(self._slave) == self.before
        return code

    def close(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)


@pytest.fixture
def on_terminal() -> Iterator[Callable[[Commands], Terminal]]:
    made: list[Terminal] = []

    def start(commands: Commands) -> Terminal:
        made.append(Terminal(commands))
        return made[-1]

    yield start
    for terminal in made:
        terminal.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_restores_the_terminal(
    psched: Commands, on_terminal: Callable[[Commands], Terminal], number: signal.Signals
) -> None:
    psched.ok("add", "nightly", "mail", "0 3 * * *", "{}")
    terminal = on_terminal(psched)
    terminal.wait_for("nightly")
    terminal.process.send_signal(number)
    assert terminal.end() == 128 + number


def test_keys_choose_what_a_narrow_terminal_shows(
    psched: Commands, on_terminal: Callable[[Commands], Terminal]
) -> None:
    psched.ok("add", "leap-day", "mail", "0 3 29 2 *", "{}")
    psched.ok("add", "hourly", "bill", "@every 1h", "{}")
    with open_psched(psched.folder / "etc" / "psched.yml") as schedules:
        nodes = schedules.store.nodes
        assert nodes is not None
        runs = (NodeRun("schedules", "weekly", "report", boottime() - 90),)
        running = encode_processes([NodeProcess("worker 1", 2, runs)], "schedules", boottime())
        nodes.announce(Announcement("host", "schedules", TypeFilter().encode(), "host", 1, "1", "tz", 100, running))
    terminal = on_terminal(psched)
    terminal.wait_for("RUNNING 1")
    terminal.resize(40)
    terminal.wait_for(END_OF_40)
    assert "hourly" in terminal.wait_for_screen("weekly", "RUNNING 1", "NEXT 2")
    terminal.press("n")
    shown = terminal.wait_for_screen("NEXT 2", without="RUNNING")
    assert shown.index("hourly") < shown.index("leap-day"), "the next one comes first"
    terminal.press("S")
    shown = terminal.wait_for_screen("in▼")
    assert shown.index("leap-day") < shown.index("hourly")
    terminal.press("a/week\r")
    terminal.wait_for_screen("weekly", "RUNNING 1", "NEXT 0")
    terminal.press("q")
    assert terminal.end() == 0


@pytest.mark.slow
def test_a_database_that_is_away_is_said_so_until_it_is_back(
    fresh: Commands, on_terminal: Callable[[Commands], Terminal], lab: Lab
) -> None:
    with lab.private(Redis) as server:
        url = server.url(server.create_database())
        fresh.configure(f"development: {{type: redis, url: '{url}', queue: {{}}}}")
        fresh.ok("queue", "init")
        fresh.ok("queue", "submit", "first", "mail", "{}")
        terminal = on_terminal(fresh)
        terminal.wait_for("1 waiting")
        server.stop()
        terminal.wait_for("is not available")
        server.start()
        fresh.ok("queue", "init")
        fresh.ok("queue", "submit", "second", "other", "{}")
        terminal.wait_for("other (queue)")
        terminal.press("q")
        assert terminal.end() == 0


def test_without_a_terminal_the_remedy_is_said(psched: Commands) -> None:
    assert "psched stats" in psched.fault("top")

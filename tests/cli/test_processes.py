"""psched as a process: with a closed pipe, after Ctrl-C, and on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from itertools import product

import pytest
from rich.cells import cell_len

from tests.cli.commands import Commands
from tests.programs import ROOT

PATIENCE = 20.0


def fill(psched: Commands, rows: int = 10) -> None:
    for row in range(rows):
        psched.ok("add", f"key {row}", "t", "0 0 1 1 *", f'{{"text":"{"x" * 20_000}"}}')


def test_a_reader_that_leaves_ends_it_silently(psched: Commands) -> None:
    fill(psched)
    for arguments in (("list",), ("list", "--json")):
        with psched.start(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout and process.stderr
            process.stdout.read(100)
            process.stdout.close()
            assert process.stderr.read() == b""
        assert process.returncode == 1


def test_a_reader_that_never_read_is_no_fault_either(psched: Commands) -> None:
    with psched.start("list", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""


def test_ctrl_c_ends_it_without_a_traceback(fresh: Commands) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        fresh.use(f"mysql://u:p@127.0.0.1:{silent.getsockname()[1]}/d")
        process = fresh.start("list", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        silent.settimeout(PATIENCE)
        connection, _ = silent.accept()
        with connection:
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert (out, err.strip()) == (b"", b"")


INTERRUPTED_IMPORT = """
import os, signal, sys
class Interruption:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.path.insert(0, {source!r})
import psched
sys.meta_path.insert(0, Interruption())
from psched.cli.entry_point import {program}
sys.exit({program}())
"""
INTERRUPTED_CLEAN_UP = """
import os, signal, sys
sys.path.insert(0, {source!r})
from psched.cli.entry_point import psched
from sqlalchemy import event, pool
event.listen(pool.Pool, "reset", lambda *_: os.kill(os.getpid(), signal.SIGINT))
sys.exit(psched())
"""


@pytest.mark.parametrize(
    ("program", "module"),
    [
        *product(("psched", "pschedd"), ("logging", "click")),
        ("psched", "psched.cli.options"),
        ("pschedd", "psched.supervisor.run_master"),
    ],
)
def test_ctrl_c_is_silent_while_modules_are_imported(program: str, module: str) -> None:
    text = INTERRUPTED_IMPORT.format(module=module, program=program, source=str(ROOT))
    done = subprocess.run([sys.executable, "-c", text, "status"], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


def test_ctrl_c_is_silent_while_the_module_of_a_command_is_imported() -> None:
    text = INTERRUPTED_IMPORT.format(module="psched.cli.schedules", program="psched", source=str(ROOT))
    done = subprocess.run([sys.executable, "-c", text, "list"], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, b"", b"")


def test_ctrl_c_is_silent_while_connections_are_closed(psched: Commands) -> None:
    text = INTERRUPTED_CLEAN_UP.format(source=str(ROOT))
    done = subprocess.run([sys.executable, "-c", text, "list"], cwd=psched.folder, capture_output=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (130, b"")


def test_ctrl_c_is_ignored_where_it_was_ignored_before(psched: Commands) -> None:
    text = INTERRUPTED_IMPORT.format(module="click", program="psched", source=str(ROOT))
    ignored = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", text, "list"]
    done = subprocess.run(ignored, cwd=psched.folder, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_table_on_a_terminal_fits_it(psched: Commands) -> None:
    fill(psched, 3)
    output = on_terminal(psched, 100, "list")
    lines = output.splitlines()
    assert lines[0].split()[:2] == ["key", "type"]
    assert lines[-1] == "3 entries."
    assert len(lines) == 5
    assert all(cell_len(line) <= 100 for line in lines)
    assert on_terminal(psched, 100, "list", "--prefix", "key 0").splitlines()[-1] == "1 entry."


def test_80_columns_keep_keys_and_cron_expressions_whole(psched: Commands) -> None:
    for key, cron in (("nightly-payroll-export-north", "*/15 8-18 * * mon-fri"), ("a", "0 2 * * *")):
        psched.ok("add", key, "reports.daily", cron, '{"region": "north"}', "-s", "2000000000", "-t", "Asia/Tokyo")
    psched.ok("pause", "a")
    header, first, paused, _ = on_terminal(psched, 80, "list").splitlines()
    assert header.split() == ["key", "type", "cron", "next_run", "state"]
    assert first.startswith("nightly-payroll-export-north rep")
    assert " */15 8-18 * * mon-fri May 18  2033 " in first
    assert " 0 2 * * * " in paused
    assert cell_len(first) <= 80
    wide = on_terminal(psched, 80, "list", "--wide").splitlines()
    assert wide[0].split() == [
        "key", "type", "cron", "delay", "timezone", "next_time", "next_run_time", "state", "data"
    ]  # fmt: skip
    assert "reports.daily" in wide[1]
    assert wide[1].endswith('{"region":"north"}')


def test_a_long_command_shows_its_progress_on_a_terminal(psched: Commands) -> None:
    for number in range(3):
        psched.ok("add", f"key{number}", "t", "0 0 1 1 *", "{}")
    output = on_terminal(psched, 100, "audit", "--from", "1d")
    assert "schedules audited" in output
    assert [line for line in output.splitlines() if "no occurrence was expected" in line] != []
    assert "\x1b[?25h" in output, "the cursor is shown again"
    assert "schedules audited" not in psched.ok("audit", "--from", "1d").out


def test_findings_on_a_terminal_are_coloured(psched: Commands) -> None:
    assert "\x1b[32mok" in on_terminal(psched, 100, "doctor")


def on_terminal(psched: Commands, columns: int, *arguments: str) -> str:
    """Return what a command writes to a terminal that is `columns` wide."""
    master, slave = pty.openpty()
    try:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        environment = {"COLUMNS": str(columns), "TERM": "xterm"}
        process = psched.start(*arguments, stdin=slave, stdout=slave, stderr=subprocess.PIPE, env=environment)
        os.close(slave)
        output = read_all(master)
        _, err = process.communicate(timeout=PATIENCE)
        assert err == b""
        return output.decode().replace("\r\n", "\n")
    finally:
        os.close(master)


def read_all(descriptor: int) -> bytes:
    """Read from a terminal until no process has its other side open."""
    found, deadline = b"", time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if not select.select([descriptor], [], [], 0.2)[0]:
            continue
        try:
            piece = os.read(descriptor, 65536)
        except OSError:  # Linux says EIO when nobody has the terminal open
            break
        if not piece:
            break
        found += piece
    return found

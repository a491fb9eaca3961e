"""The log file: records are written whole, others cannot read it, and it is reopened after it was moved or closed."""

from __future__ import annotations

import json
import logging
import os
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from logging_journald import JournaldTransport

from psched.errors import ConfigError
from psched.process.logs import Log, LogHandler


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "psched.log"


@pytest.fixture
def log(path: Path) -> Iterator[Log]:
    log = Log(path)
    yield log
    log.move(None)


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord("psched.test", logging.WARNING, __file__, 1, message, (), None)


def test_control_characters_are_escaped(log: Log, path: Path) -> None:
    LogHandler(log).handle(record("key=a\x1b[2J\r\x7f\x9b\u202e\u2069\u2028\tb\nc"))
    assert path.read_text().endswith("key=a\\x1b[2J\\x0d\\x7f\\x9b\\u202e\\u2069\\u2028\tb\n    c\n")


def test_a_record_has_time_with_its_zone_level_pid_logger_and_message(log: Log, path: Path) -> None:
    LogHandler(log).handle(record("hello"))
    head, _, rest = path.read_text().partition(" WARNING ")
    assert rest == f"[{os.getpid()}] psched.test: hello\n"
    day, moment, zone = head.split()
    assert (len(day), len(moment), len(zone)) == (10, 12, 5)


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket of systemd's journal."""
    monkeypatch.setattr(sys, "argv", ["/opt/psched/bin/pschedd", "run"])
    monkeypatch.setattr(JournaldTransport, "SOCKET_PATH", tmp_path / "journal")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "journal"))
        listener.setblocking(False)
        yield listener


def failure(level: int = logging.ERROR) -> logging.LogRecord:
    try:
        raise ValueError("first line\nPRIORITY=0\x1b")
    except ValueError as error:
        information = (type(error), error, error.__traceback__)
        return logging.LogRecord("psched.test", level, __file__, 1, "key=%s failed", ("a\nb",), information)


def log_in_service(record: logging.LogRecord, json: bool = False) -> None:
    """Log a record as a process whose standard error goes to the journal.

    The environment names the file of standard error. capfd opens another file for each phase of a test, so no fixture
    can know the file.
    """
    found = os.fstat(2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
        LogHandler(Log(None, json=json)).handle(record)


def test_a_service_without_log_writes_a_traceback_as_one_entry_of_the_journal(journal: socket.socket) -> None:
    log_in_service(failure())
    fields = _fields(journal.recv(65536))
    message = fields.pop("MESSAGE")
    assert fields == {"PRIORITY": "3", "SYSLOG_IDENTIFIER": "pschedd"}
    lines = message.splitlines()
    assert lines[:3] == ["psched.test: key=a", "b failed", "Traceback (most recent call last):"], "no time, no level"
    assert lines[-2:] == ["ValueError: first line", "PRIORITY=0\\x1b"]
    with pytest.raises(BlockingIOError):
        journal.recv(65536)


def test_with_json_an_entry_of_the_journal_is_the_object(
    journal: socket.socket, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log_in_service(failure(), json=True)
    fields = _fields(journal.recv(65536))
    line = json.loads(fields["MESSAGE"])
    assert (fields["PRIORITY"], line["level"], line["event"]) == ("3", "error", "key=a\nb failed")
    assert line["traceback"].endswith("ValueError: first line\nPRIORITY=0\x1b") and "\n" not in fields["MESSAGE"]
    (tmp_path / "journal").unlink()
    log_in_service(failure(), json=True)
    (shown,) = capfd.readouterr().err.splitlines()
    assert shown.startswith("<3>") and json.loads(shown[3:])["event"] == "key=a\nb failed"


def test_an_entry_is_never_too_long(journal: socket.socket) -> None:
    log_in_service(record("x" * 1_000_000))
    data, descriptors, _, _ = socket.recv_fds(journal, 1, 1)
    with os.fdopen(descriptors[0], "rb") as file:
        file.seek(0)
        assert data == b""
        assert _fields(file.read())["MESSAGE"] == f"psched.test: {'x' * 1_000_000}"


def test_priorities_are_those_of_syslog(journal: socket.socket) -> None:
    levels = (logging.CRITICAL, logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG, 1, 25)
    for level in levels:
        log_in_service(failure(level))
    assert [_fields(journal.recv(65536))["PRIORITY"] for _ in levels] == ["2", "3", "4", "6", "7", "7", "6"]


def test_without_the_journal_s_socket_each_line_has_its_priority(
    journal: socket.socket, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "journal").unlink()
    log_in_service(failure())
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "<3>psched.test: key=a"
    assert all(line.startswith("<3>") for line in lines)


def test_another_stderr_than_the_journal_gets_the_usual_lines(
    journal: socket.socket, path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Log(path)
    LogHandler(file).handle(record("in the file"))
    file.move(None)
    monkeypatch.setenv("JOURNAL_STREAM", "0:0")
    LogHandler(Log(None)).handle(record("on stderr"))
    assert path.read_text().endswith(" psched.test: in the file\n")
    assert capfd.readouterr().err.endswith(" psched.test: on stderr\n")
    with pytest.raises(BlockingIOError):
        journal.recv(65536)


def _fields(datagram: bytes) -> dict[str, str]:
    """Parse an entry of the journal's native protocol."""
    fields = {}
    while datagram:
        name, _, datagram = datagram.partition(b"\n")
        if b"=" in name:
            name, _, value = name.partition(b"=")
        else:
            length = int.from_bytes(datagram[:8], sys.byteorder)
            value, datagram = datagram[8 : 8 + length], datagram[8 + length + 1 :]
        fields[name.decode()] = value.decode()
    return fields


def test_no_message_can_feign_a_record(log: Log, path: Path) -> None:
    LogHandler(log).handle(record("one\n2026-01-01 00:00:00.000 +0000 ERROR two"))
    assert path.read_text().splitlines()[1].startswith("    ")


def test_a_record_is_one_write_at_the_end_of_a_shared_file(log: Log, path: Path) -> None:
    other = Log(path)
    for number in range(10):
        (log, other)[number % 2].write(f"{number}\n")
    other.move(None)
    assert path.read_text() == "".join(f"{number}\n" for number in range(10))


def test_the_file_is_not_for_everybody(path: Path) -> None:
    before = os.umask(0)
    try:
        Log(path).move(None)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_reopening_goes_on_in_a_new_file_of_the_same_name(log: Log, path: Path) -> None:
    log.write("old\n")
    path.rename(path.with_suffix(".1"))
    log.write("still old\n")
    log.reopen()
    log.write("new\n")
    assert path.with_suffix(".1").read_text() == "old\nstill old\n"
    assert path.read_text() == "new\n"


def test_a_log_that_cannot_be_reopened_goes_on_in_the_old_file(
    log: Log, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    moved = path.with_suffix(".1")
    path.rename(moved)
    path.symlink_to(moved)
    log.reopen()
    log.write("on\n")
    assert moved.read_text() == "on\n"
    assert "continuing in the old file" in caplog.text


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("elsewhere"), lambda path: path.mkdir()])
def test_a_link_or_a_folder_is_refused(path: Path, make: object) -> None:
    make(path)  # type: ignore[operator]
    with pytest.raises(ConfigError, match="psched.log"):
        Log(path)


def test_a_pipe_without_a_reader_is_refused_instead_of_waited_for(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(ConfigError, match=f"log: cannot write {path}: no program reads this pipe; start its reader"):
        Log(path)
    with closing(os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK))) as reader:
        log = Log(path)
        log.write("a line\n")
        assert reader.readline() == "a line\n"
        assert os.get_blocking(log._target.descriptor)
        log._target.close()


def test_a_log_closed_by_a_handler_is_opened_again_and_no_other_file_written(log: Log, path: Path) -> None:
    log.write("before\n")
    number = log._target.descriptor
    os.close(number)
    stranger = os.open(path.with_name("stranger"), os.O_WRONLY | os.O_CREAT)
    if stranger != number:
        os.dup2(stranger, number)
        os.close(stranger)
    log.write("after\n")
    os.close(number)
    assert path.read_text() == "before\nafter\n"
    assert path.with_name("stranger").read_text() == ""

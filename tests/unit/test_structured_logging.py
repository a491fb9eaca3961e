"""A log record is one JSON object in one line, and names the run to which it belongs."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import structlog

from psched import telemetry
from psched.errors import ArgumentsError, UnstorableResultError
from psched.model import Claim, Lease, LeaseTimes, TaskRow
from psched.process.run_outcome_log import log_runs
from psched.structured_logging import JSONFormatter, RunContextFilter, add_run_context, run_context
from psched.task import Task
from psched.telemetry import emit
from tests.unit.fake_task import Ledger
from tests.unit.settling_child import opened_child

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
HEADERS = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
OF_RUN = {
    "section": "queue",
    "key": "report.1",
    "type": "report",
    "attempt": 3,
    "fence": 7,
    "scheduled_time": "2026-01-02T03:04:05Z",
    "trace_id": TRACE,
}


def task(headers: dict[str, Any] | None = None) -> Task:
    about = HEADERS if headers is None else headers
    row = TaskRow("report.1", "report", {}, "running", 1767323045.0, None, 3, headers=about)
    return Task(Claim(row, Lease("report.1", 7, 1e12)), Ledger(), LeaseTimes(60, 10), deadline=1e12)


@contextmanager
def run_of(task: Task) -> Iterator[None]:
    emit("run_start", section="queue", task=task)
    try:
        yield
    finally:
        emit("run_end", section="queue", task=task, seconds=0.0)


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """The JSON lines that a logger of the application has written."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JSONFormatter())
    logger = logging.getLogger("team.reports")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield stream
    logger.removeHandler(handler)
    logger.propagate = True


log = logging.getLogger("team.reports")


def written(lines: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.getvalue().splitlines()]


def test_any_logger_names_the_run_of_its_handler(lines: io.StringIO) -> None:
    with run_of(task()):
        log.info("made %d pages", 12)
    log.info("outside")
    inside, outside = written(lines)
    assert inside.pop("ts").endswith("Z") and outside.pop("ts")
    where = {"level": "info", "logger": "team.reports", "node": socket.gethostname(), "pid": os.getpid()}
    assert inside == {"event": "made 12 pages", **where, **OF_RUN}
    assert outside == {"event": "outside", **where}


def test_a_traceback_is_inside_the_object(lines: io.StringIO) -> None:
    with run_of(task()):
        try:
            raise ValueError("no such\nregion")
        except ValueError:
            log.exception("failed")
    (line,) = written(lines)
    assert line["level"] == "error" and line["key"] == "report.1"
    assert line["error"] == "ValueError: no such"
    assert line["traceback"].startswith("Traceback (most recent call last):\n  File ")
    assert line["traceback"].endswith("ValueError: no such\nregion")


def test_extra_fields_are_added_and_never_replace_those_of_psched(lines: io.StringIO) -> None:
    with run_of(task()):
        log.info("sent", extra={"pages": 3, "key": "of the user", "where": object(), "ratio": float("nan")})
    (line,) = written(lines)
    assert (line["key"], line["key_"]) == ("report.1", "of the user")
    assert line["where"].startswith("<object object")
    assert line["ratio"] == "nan", "JSON has no NaN"


def test_no_extra_field_looks_like_the_backfill_of_a_run(lines: io.StringIO) -> None:
    log.info("sent", extra={"backfill": "of the user"})
    (line,) = written(lines)
    assert line["backfill_"] == "of the user" and "backfill" not in line


def test_control_characters_and_lines_are_escaped(lines: io.StringIO) -> None:
    log.info("a\nb\x1b[2J\x9b\u2028\u202e – ü")
    text = lines.getvalue()
    assert text.count("\n") == 1 and "– ü" in text
    assert not {"\x1b", "\x9b", "\u2028", "\u202e"} & set(text)
    assert json.loads(text)["event"] == "a\nb\x1b[2J\x9b\u2028\u202e – ü"


def test_coroutines_and_their_threads_belong_to_the_run(lines: io.StringIO) -> None:
    async def handler() -> None:
        await asyncio.to_thread(log.info, "in a thread")

    with run_of(task()):
        asyncio.run(handler())
        other = threading.Thread(target=log.info, args=("of another thread",))
        other.start()
        other.join()
    inside, outside = written(lines)
    assert inside["key"] == "report.1" and "key" not in outside


@pytest.mark.parametrize("header", [None, 5, "00-xyz", f"00-{'0' * 32}-00f067aa0ba902b7-01", f"00-{TRACE}"])
def test_a_header_that_is_no_trace_is_no_trace(header: object) -> None:
    with run_of(task({} if header is None else {"traceparent": header})):
        assert "trace_id" not in run_context()


def test_a_filter_adds_the_run_to_other_formats() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(RunContextFilter())
    handler.setFormatter(logging.Formatter("%(psched_key)s %(psched_attempt)s %(message)s"))
    record = logging.LogRecord("team", logging.INFO, "", 1, "hello", (), None)
    with run_of(task()):
        handler.handle(record)
    handler.handle(record)
    assert stream.getvalue() == "report.1 3 hello\n- - hello\n"


def test_structlog_adds_the_run_by_a_processor() -> None:
    stream = io.StringIO()
    logger = structlog.wrap_logger(
        structlog.PrintLogger(stream), processors=[add_run_context, structlog.processors.JSONRenderer()]
    )
    with run_of(task()):
        logger.info("made", pages=12, key="kept")
    logger.info("outside")
    inside, outside = (json.loads(line) for line in stream.getvalue().splitlines())
    assert inside == {**OF_RUN, "event": "made", "pages": 12, "key": "kept"}
    assert outside == {"event": "outside"}


def test_structlog_through_logging_is_one_object(lines: io.StringIO) -> None:
    processors = [structlog.stdlib.render_to_log_kwargs]
    logger = structlog.wrap_logger(log, processors=processors, wrapper_class=structlog.stdlib.BoundLogger)
    with run_of(task()):
        logger.warning("made", pages=12)
    (line,) = written(lines)
    assert (line["event"], line["level"], line["pages"], line["key"]) == ("made", "warning", 12, "report.1")


@pytest.mark.parametrize("kind", [ArgumentsError, UnstorableResultError])
def test_wrong_data_and_results_are_logged_in_full_on_one_line(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(telemetry, "_listeners", {})
    log_runs()
    emit("run_error", task=task(), error=kind(f"{'x' * 1000} is missing"))
    [record] = caplog.records
    assert record.getMessage().endswith("xxx is missing')")
    assert record.exc_info is None


def test_each_of_the_runs_that_are_settled_together_has_a_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(telemetry, "_listeners", {})
    log_runs(json=True)
    with opened_child() as child, caplog.at_level(logging.INFO, "psched.runs"):
        child.serve("quick.1", "quick.2", "quick.3")
    written = [json.loads(JSONFormatter().format(record)) for record in caplog.records if record.name == "psched.runs"]
    assert [(line["event"], line["key"], line["type"]) for line in written] == [
        ("run_finished", f"quick.{number}", "quick") for number in (1, 2, 3)
    ]

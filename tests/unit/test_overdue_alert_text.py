"""The text of an overdue alert: when it was due, how late it is, what has happened so far, and what to check."""

from __future__ import annotations

from psched.store.alert_store import Overdue

TIME = 1_600_000_000


def overdue(status: str, attempts: int, last_error: str | None, time: int = TIME) -> str:
    return str(Overdue("report", "mail", time, 305.2, status, attempts, "host/1/a" if attempts else None, last_error))


def test_what_was_never_begun_asks_for_a_worker() -> None:
    assert overdue("waiting", 0, None) == (
        "'report': the occurrence of 2020-09-13 12:26:40 UTC is not finished 305 s after its time (never begun);"
        " is a node running that routes the type 'mail'? (pschedd status, psched doctor)"
    )


def test_what_fails_tells_its_last_error_and_where_there_is_more() -> None:
    assert overdue("waiting", 3, "KeyError('x')\nTraceback: all of it") == (
        "'report': the occurrence of 2020-09-13 12:26:40 UTC is not finished 305 s after its time"
        " (waiting by host/1/a, attempt 3); the last error: KeyError('x'); psched show 'report' shows the whole error"
    )


def test_what_runs_is_reported_as_that() -> None:
    assert overdue("running", 1, None).endswith(
        "(running by host/1/a, attempt 1); is the worker still busy with it? (pschedd status)"
    )


def test_a_time_without_a_date_and_an_error_without_end_break_nothing() -> None:
    assert "the occurrence of unix time 999999999999999 is" in overdue("waiting", 0, None, 999_999_999_999_999)
    assert len(overdue("waiting", 1, "x" * 10_000)) < 500
    assert "the last error: ;" in overdue("waiting", 1, "")

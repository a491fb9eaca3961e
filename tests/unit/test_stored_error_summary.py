"""The summary of an error, in one line, contains the exception and its message, whatever surrounds them."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest

from psched.application.handler_base import describe_error
from psched.stored_error_summary import error_summary, exception_line


class SeveralLinesError(Exception):
    def __repr__(self) -> str:
        return "<several\nlines>"


def chained() -> None:
    try:
        {}["missing"]
    except KeyError as error:
        raise RuntimeError("no account") from error


def without_its_context() -> None:
    try:
        {}["missing"]
    except KeyError:
        raise LookupError("no account\nof that name") from None


def while_handling() -> None:
    try:
        {}["missing"]
    except KeyError:
        int("seven\n")


def of_lines() -> None:
    raise ValueError("disk full\n  on /var\nTry again later")


def that_begins_with_a_line_break() -> None:
    raise ValueError("\n\nselect 1\n  ^ here")


def of_another_repr() -> None:
    raise SeveralLinesError("first", "second")


def in_a_group() -> None:
    raise ExceptionGroup("two failed", [ValueError("one"), KeyError("two")])


def without_a_message() -> None:
    raise TimeoutError


def with_a_note() -> None:
    error = ValueError("it broke")
    error.add_note("while the moon was full")
    raise error


def in_the_source() -> None:
    compile("x = = 1", "jobs.py", "exec")


CASES: dict[Callable[[], None], str] = {
    chained: "RuntimeError: no account",
    without_its_context: "LookupError: no account",
    while_handling: "ValueError: invalid literal for int() with base 10: 'seven\\n'",
    of_lines: "ValueError: disk full",
    that_begins_with_a_line_break: "ValueError: select 1",
    of_another_repr: "tests.unit.test_stored_error_summary.SeveralLinesError: ('first', 'second')",
    in_a_group: "ExceptionGroup: two failed (2 sub-exceptions)",
    without_a_message: "TimeoutError",
    with_a_note: "ValueError: it broke",
    in_the_source: "SyntaxError: invalid syntax",
}


def raised(function: Callable[[], None]) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - whatever it is
        function()
    return caught.value


@pytest.mark.parametrize(("function", "expected"), CASES.items(), ids=lambda case: getattr(case, "__name__", ""))
def test_an_exception_is_summed_up_by_its_type_and_message(function: Callable[[], None], expected: str) -> None:
    error = raised(function)
    assert error_summary(describe_error(error)) == expected
    assert error_summary("".join(traceback.format_exception(error))) == expected


def test_the_end_of_a_traceback_is_enough() -> None:
    text = "".join(traceback.format_exception(raised(chained)))
    end = text[-(len("RuntimeError: no account\n") + 120) :]
    assert "Traceback" not in end
    assert error_summary(end) == "RuntimeError: no account"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the handler returned False", "the handler returned False"),
        ("\n  disk full\nTry again later\n", "disk full"),
        ("(sqlite3.OperationalError) locked\n[SQL: SELECT 1]\n(Background …)", "(sqlite3.OperationalError) locked"),
        ("", ""),
        ("Traceback (most recent call last):\n", "Traceback (most recent call last):"),
    ],
)
def test_a_text_without_an_exception_is_summed_up_by_its_first_line(text: str, expected: str) -> None:
    assert error_summary(text) == expected
    assert exception_line(text) is None


def test_what_a_program_wrote_before_its_traceback_is_left_out() -> None:
    written = "Reading the file\nDone in part\n" + "".join(traceback.format_exception(raised(of_lines)))
    assert error_summary(written) == "ValueError: disk full"

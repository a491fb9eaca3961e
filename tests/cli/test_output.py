"""The layout of rows: streamed, fitted to a terminal, and with control characters escaped."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import pytest
from rich.cells import cell_len

from psched.cli.formatting import (
    KEPT,
    brief_time,
    compact,
    cut,
    fitted,
    fixed,
    json_line,
    json_lines,
    local_iso,
    number,
    printable,
    short_time,
    write_fields,
)
from psched.time_text import local_time
from tests.cli.commands import Commands


def taken(limit: int) -> Iterator[tuple[str, str]]:
    """Yield `limit` rows. Fail if another row is requested."""
    for index in range(limit):
        yield f"key{index}", "data"
    pytest.fail("read ahead")


def test_rows_are_printed_while_more_are_read() -> None:
    assert next(fixed((5,), taken(1))) == " key0 data"
    assert next(json_lines(taken(1))).startswith('[["key0"')
    assert list(itertools.islice(fitted(taken(300), 80, (1, 0)), 300))[299] == "key299 data"


@pytest.mark.parametrize("count", [0, 1, 3])
def test_json_is_one_array_however_many_rows_there_are(count: int) -> None:
    assert json.loads("\n".join(json_lines(iter(range(count))))) == list(range(count))


@pytest.mark.parametrize("width", [80, 60, 40])
def test_a_table_fits_the_terminal_in_cells_not_characters(width: int) -> None:
    rows = [("key", "time", "data"), ("値" * 30, "2013-01-01 00:00", "x" * 100), ("b", "2013-01-01 00:00", "{}")]
    lines = list(fitted(rows, width, (1, KEPT, 0)))
    assert all(cell_len(line) <= width for line in lines)
    assert all("2013-01-01 00:00" in line for line in lines[1:])
    assert lines[1].endswith("…")


def test_columns_of_the_lowest_rank_give_way_first() -> None:
    rows = [("key", "cron", "time", "data"), ("nightly-payroll", "0 2 * * *", "2026-11-23 02:00", "x" * 100)]
    ranks = (2, 2, 1, 0)
    assert list(fitted(rows, 50, ranks))[1] == "nightly-payroll 0 2 * * * 2026-11-23 02:00 xxxxxx…"
    assert list(fitted(rows, 40, ranks))[1] == "nightly-payroll 0 2 * * * 2026-11… xxxx…"
    assert list(fitted(rows, 30, ranks))[1] == "nightly… 0 2 * * * 2026… xxxx…"


def test_a_table_that_fits_is_not_cut() -> None:
    assert list(fitted([("key", "data"), ("a", "{}")], 80, (0, 0))) == ["key data", "a   {}"]


def test_rows_after_the_first_hundreds_keep_the_columns() -> None:
    rows = [("key", "data"), *[("a", "{}")] * 300, ("a much longer key", "{}")]
    assert list(fitted(rows, 80, (1, 0)))[-1] == "a…  {}"


def test_cut_marks_what_is_missing() -> None:
    assert cut("abc", 3) == "abc"
    assert cut("abcd", 3) == "ab…"
    assert cut("値値値", 4) == "値…"


def test_control_characters_are_written_out_so_that_a_key_cannot_move_the_cursor() -> None:
    assert printable("a\x1b[2Jb\nc\u202e値") == "a\\x1b[2Jb\\nc\\u202e値"
    assert list(fixed((4,), [("a\nb", "c\rd")])) == ["a\\nb c\\rd"]


def test_json_holds_no_character_that_a_terminal_obeys() -> None:
    key = "a\x1b\x7f\x9b\u061c\u202e\u2066\u2028値"
    line = json_line({"key": key})
    assert line == '{"key": "a\\u001b\\u007f\\u009b\\u061c\\u202e\\u2066\\u2028値"}'
    assert json.loads(line) == {"key": key}


def test_an_error_is_shown_by_its_lines_and_a_key_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    write_fields({"key": "a\nlast_error x", "last_error": "it broke\n\n  \x1b[2Jhere\n", "node": None}, ())
    assert capsys.readouterr().out == (
        "key            a\\nlast_error x\nlast_error     it broke\n\n                 \\x1b[2Jhere\n"
    )


def test_a_list_of_numbers_is_shown_like_a_list_of_texts(capsys: pytest.CaptureFixture[str]) -> None:
    write_fields({"numbers": (1, 2), "texts": ("a", "b")}, ())
    assert capsys.readouterr().out.split() == ["numbers", "1,", "2", "texts", "a,", "b"]


def test_times_no_calendar_reaches_are_shown_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert local_iso(1e18) is None
    assert {local_time(10**18), short_time(10**18), brief_time(10**18)} == {str(10**18)}


def test_a_table_on_a_terminal_has_short_dates(fresh: Commands) -> None:
    at = 1_700_000_000  # 2023-11-15 07:13:20 in Tokyo
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.time", lambda: at + 86400 * 100.0)
        assert (brief_time(at), brief_time(at - 86400 * 100)) == ("Nov 15 07:13", "Aug 07  2023")
    assert (short_time(at), short_time(at - 20)) == ("2023-11-15 07:13:20 +0900", "2023-11-15 07:13 +0900")


def test_data_that_another_program_stored_against_the_rules_is_shown() -> None:
    assert compact({"a": float("nan")}) == "{'a': nan}"


def test_numbers_have_no_needless_fraction() -> None:
    assert (number(30.0), number(-5), number(0.5)) == ("30", "-5", "0.5")

"""Prints rows as JSON, as a table that fits the terminal, as tab-separated lines, or like the Ruby programs."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import chain, islice
from pathlib import Path
from typing import Any

from rich.cells import cell_len, set_cell_size

from psched.atomic_write import write_atomically
from psched.error_messages import ESCAPES
from psched.payload import encode
from psched.time_text import local_datetime, local_time

_SAMPLE = 200
"""How many rows decide the column widths. Further rows are printed while they are read, so that millions can be listed.
"""
_MIN_WIDTH = 5
_HALF_A_YEAR = 182 * 86400
_MULTILINE = ("last_error",)
_JSON_ESCAPED = {code: f"\\u{code:04x}" for code in ESCAPES if code >= 0x7F}  # JSON itself escapes the other characters

Fields = dict[str, Any]

Shown = Callable[[float], str]
"""Formats unix seconds for a table."""

KEPT = 9
"""The rank of a column that is never cut."""


@dataclass(frozen=True)
class ListColumns:
    """The columns of a list.

    `brief`: the columns on a terminal, each with a rank. If the terminal is too narrow, columns of the lowest rank are
    cut first; a column of rank `KEPT` is never cut. `wide`: all columns. `original`: the columns that the Ruby
    program prints, and their widths; the last column has no width. `own_time`: a column of unix seconds that `--json`
    leaves out.
    """

    brief: Mapping[str, int]
    wide: Sequence[str]
    original: Mapping[str, int] = field(default_factory=dict)
    own_time: str | None = None


def write(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")


def write_file(path: Path, parts: Iterable[str], replace: bool) -> None:
    """Write a file. Raises ValueError if the file exists and `replace` is false."""
    try:
        write_atomically(path, parts, replace=replace)
    except FileExistsError:
        raise ValueError(f"{path} exists; choose another file with --output, or replace it with --force") from None


def write_rows(
    rows: Iterable[Fields],
    times: Collection[str],
    table: ListColumns,
    *,
    listed: Callable[[Fields], Fields],
    as_json: bool,
    wide: bool = False,
    original: bool = False,
) -> None:
    """Print the rows while they are read.

    With `as_json`, prints one JSON array. With `original`, prints the Ruby program's format. Otherwise prints a
    table that fits the terminal, or, with `wide`, an uncut table of all columns. Into a pipe or file, prints all
    columns as tab-separated lines instead of a table. `times`: the names of fields in unix seconds. `listed`: returns
    the fields of a row for a table.
    """
    if as_json:
        write(json_lines(with_local_times(row, times) for row in rows))
        return
    is_terminal = sys.stdout.isatty()
    shown_times = {*times, table.own_time}
    columns = tuple(table.original) if original else table.wide if wide or not is_terminal else tuple(table.brief)
    count = 0

    def lines(shown: Shown) -> Iterator[Sequence[str]]:
        nonlocal count
        yield columns
        for count, row in enumerate(map(listed, rows), 1):  # noqa: B007 - read by the enclosing function
            yield tuple(_text(row[name], shown if name in shown_times else number) for name in columns)

    if original:
        write(fixed([*table.original.values()][:-1], lines(local_time)))
    elif is_terminal:
        width = sys.maxsize if wide else shutil.get_terminal_size().columns
        ranks = [table.brief.get(name, KEPT) for name in columns]
        write(fitted(lines(short_time if wide else brief_time), width, ranks))
    else:
        write("\t".join(map(printable, cells)) for cells in lines(local_time))
        return
    write(["1 entry." if count == 1 and not original else f"{count} entries."])


def write_object(row: Fields, times: Iterable[str]) -> None:
    """Print one row as JSON."""
    write([json_line(with_local_times(row, times))])


def write_fields(row: Fields, times: Collection[str]) -> None:
    """Print a line for each value except None, false and (). `times`: the names of fields in unix seconds."""
    for name, value in row.items():
        if value is None or value is False or value == ():
            continue
        text = _text(value, exact_time if name in times else number)
        first, *more = text.rstrip("\n").split("\n") if name in _MULTILINE else [text]
        write([f"{name:<14} {printable(first)}".rstrip(), *(f"{'':14} {printable(line)}".rstrip() for line in more)])


def _text(value: Any, shown: Shown) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, dict):
        return compact(value)
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return "yes" if value is True else shown(value)


def json_line(value: Any) -> str:
    """Return a value as JSON on one line. A dataclass, such as a Backoff, becomes an object."""
    return json.dumps(value, ensure_ascii=False, default=asdict).translate(_JSON_ESCAPED)


def json_lines(values: Iterable[Any]) -> Iterator[str]:
    before = "["
    for value in values:
        yield f"{before}{json_line(value)}"
        before = ","
    yield "[]" if before == "[" else "]"


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name.

    The values are not copied. This is four times as fast as `asdict`, which copies deeply.
    """
    return {each.name: getattr(value, each.name) for each in fields(value)}


def with_local_times(row: Fields, times: Iterable[str]) -> Fields:
    """Return the fields, with another field `NAME_local` in ISO 8601 for each name in `times`."""
    return row | {f"{name}_local": local_iso(row[name]) for name in times}


def local_iso(seconds: float | None) -> str | None:
    """Return unix seconds as ISO 8601 in this host's time zone; None outside the years 1 to 9999."""
    moment = None if seconds is None else local_datetime(seconds)
    return None if moment is None else moment.isoformat(timespec="seconds")


def exact_time(seconds: float) -> str:
    return f"{number(seconds)}  {local_time(seconds)}"


def short_time(seconds: float) -> str:
    """Return a local time with its UTC offset: `2026-11-22 21:30 +0100`. Seconds are shown unless they are 0."""
    moment = local_datetime(seconds)
    if moment is None:
        return str(seconds)
    return f"{moment:%Y-%m-%d %H:%M:%S %z}" if moment.second else f"{moment:%Y-%m-%d %H:%M %z}"


def brief_time(seconds: float) -> str:
    """Return a time like `ls -l`: `Nov 22 21:30`, or `Nov 22  2027` if it is half a year away or more."""
    moment = local_datetime(seconds)
    if moment is None:
        return str(seconds)
    is_near = abs(seconds - time.time()) < _HALF_A_YEAR
    return f"{moment:%b %d %H:%M}" if is_near else f"{moment:%b %d  %Y}"


def compact(data: dict[str, Any]) -> str:
    """Return data as compact JSON, or its repr if JSON cannot hold it."""
    try:
        return encode(data)
    except ValueError:
        return repr(data)


def number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)


def fixed(widths: Sequence[int], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield each row as a line. Cells are right-aligned to `widths`. Longer cells are not cut.

    The last column has no width and is not padded.
    """
    for row in rows:
        yield " ".join(f"{printable(text):>{width}}" for text, width in zip(row, (*widths, 0), strict=True))


def fitted(rows: Iterable[Sequence[str]], width: int, ranks: Sequence[int]) -> Iterator[str]:
    """Yield rows in columns that fit into `width` cells. The first row is the header.

    Columns of the lowest rank are cut first, the widest of them first. A cut cell ends with …. Columns of the rank
    `KEPT` are never cut.
    """
    stream = iter(rows)
    sample = [[printable(text) for text in row] for row in islice(stream, _SAMPLE)]
    widths = _widths(sample, width, ranks)
    for row in chain(sample, ([printable(text) for text in row] for row in stream)):
        cells = [text if ranks[column] == KEPT else cut(text, widths[column]) for column, text in enumerate(row)]
        padded = (cell + " " * (size - cell_len(cell)) for cell, size in zip(cells, widths, strict=True))
        yield " ".join(padded).rstrip()


def cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


def printable(text: str) -> str:
    """Return `text` with control characters escaped, because a key must not move the cursor or break the line."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _widths(sample: Sequence[Sequence[str]], width: int, ranks: Sequence[int]) -> list[int]:
    widths = [max(cell_len(text) for text in column) for column in zip(*sample, strict=True)]
    while sum(widths) + len(widths) - 1 > width:
        wide = [column for column, rank in enumerate(ranks) if rank < KEPT and widths[column] > _MIN_WIDTH]
        if not wide:
            break
        widths[min(wide, key=lambda column: (ranks[column], -widths[column]))] -= 1
    return widths

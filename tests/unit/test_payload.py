"""Data of a row is checked before it is written, and is read as it was."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psched.payload import MAX_DATA_SIZE, check_stored, compress, compress_to_text, decode, encode, pack

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)


def nested(depth: int) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for _ in range(depth):
        data = {"in": data}
    return data


@given(st.dictionaries(TEXT, JSON, max_size=5))
def test_what_was_written_is_read_again(data: dict[str, Any]) -> None:
    text = encode(data)
    assert decode(text) == data
    assert decode(text.encode()) == data


def test_data_is_compact_and_escapes_no_more_than_it_must() -> None:
    assert encode({"é": ["ü", "😀", "</a>"], "n": 1.5, "t": True, "e": None}) == (
        '{"é":["ü","😀","</a>"],"n":1.5,"t":true,"e":null}'
    )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ([1], r"data must be a JSON object \(a dict\), got list"),
        ("{}", "got str"),
        (None, "got NoneType"),
        (
            {"x": math.nan},
            r"cannot be stored as JSON: data\['x'\] is nan, .* valid JSON; expected a finite number .* or null",
        ),
        ({"x": [1, math.inf]}, r"cannot be stored as JSON: data\['x'\]\[1\] is inf"),
        ({"x": {1, 2}}, r"cannot be stored as JSON: data\['x'\] is a set; expected text, a number, true"),
        ({"x": b"bytes"}, r"cannot be stored as JSON: data\['x'\] is a bytes"),
        ({("a", "b"): 1}, r"cannot be stored as JSON: the name \('a', 'b'\) in data is not text"),
        (
            {"x": {"y": 10**5000}},
            r"data\['x'\]\['y'\] is a whole number of about 5001 digits; at most 4300 digits can be read",
        ),
        ({1: "one"}, "cannot be stored as JSON: the name 1 in data is not text"),
        ({"a": [{}, {"b": {None: 1}}]}, r"the name None in data\['a'\]\[1\]\['b'\] is not text"),
        (
            {"x": "\ud800"},
            r"cannot be stored as JSON: data\['x'\] contains half of a surrogate pair, which is not valid text",
        ),
        ({"x": {"\udfff": 1}}, r"cannot be stored as JSON: a name in data\['x'\] contains half of a surrogate pair"),
    ],
)
def test_what_is_no_json_is_refused_with_the_reason(data: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        encode(data)


def test_data_that_is_nested_too_deeply_or_contains_itself_is_refused() -> None:
    itself: dict[str, Any] = {}
    itself["self"] = itself
    for data in (nested(100_000), itself):
        with pytest.raises(
            ValueError, match="cannot be stored as JSON: it is nested too deeply, or contains itself; use flatter data"
        ):
            encode(data)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "nonsense",
        b"\xff{}",
        '{"x":NaN}',
        '{"x":-Infinity}',
        "[1]",
        "null",
        "1",
        '{"x":}',
        '{"x":[1,]}',
        '{"x":nul',
    ],
)
def test_text_that_holds_no_json_object_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        decode(text)


def test_a_stored_number_that_python_refuses_to_read_is_reported_with_its_length() -> None:
    with pytest.raises(ValueError, match="data is not usable: it holds a number of 5000 digits, at most 4300"):
        decode('{"x":' + "7" * 5000 + "}")


def test_data_that_no_database_would_take_is_refused() -> None:
    encode({"a": "x" * (MAX_DATA_SIZE - 8)})
    with pytest.raises(ValueError, match=f"{MAX_DATA_SIZE + 1} bytes"):
        encode({"a": "x" * (MAX_DATA_SIZE - 7)})


def test_nothing_but_blanks_may_follow_the_object() -> None:
    assert decode('{"a": 1} \n') == {"a": 1}
    with pytest.raises(ValueError, match="Extra data"):
        decode('{"a": 1}{}')


def test_a_small_text_that_stands_for_a_large_one_is_not_expanded() -> None:
    bomb = compress_to_text('{"a":"' + "x" * 64_000_000 + '"}')
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="more than 1000000 bytes.*max_data_size"):
            decode(bomb, 1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def test_what_is_compressed_in_several_parts_counts_together() -> None:
    parts = compress('{"a":"' + "x" * 600) + compress("x" * 600 + '"}')
    assert len(decode(parts, 1300)["a"]) == 1200
    with pytest.raises(ValueError, match="max_data_size"):
        decode(parts, 1000)
    with pytest.raises(ValueError, match="damaged"):
        decode(parts[:-3], 1300)


def test_data_is_packed_with_its_size() -> None:
    text, size = pack({"a": "ä" * 10}, True)
    assert (decode(text), size) == ({"a": "ä" * 10}, 28)
    assert pack({"a": 1}) == ('{"a":1}', 7)
    with pytest.raises(ValueError, match="at most 8000000 can be stored"):
        pack({"a": "x" * 8_000_000})


def test_what_is_too_large_is_reported_with_the_limit_and_the_remedy() -> None:
    with pytest.raises(
        ValueError, match="data has 11 bytes as JSON, at most 10 are allowed; store less, or raise max_da"
    ):
        encode({"x": "abc"}, 10)
    with pytest.raises(
        ValueError, match="data has 8000001 bytes compressed, at most 8000000 can be stored; store less"
    ):
        check_stored(8_000_001, compressed=True)

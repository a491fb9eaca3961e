"""Keys, data and times at their limits: a value is returned as it was stored, and different values stay different."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from psched.errors import AlreadyExistsError, NotSupportedError, ScheduleError
from psched.model import Rule
from psched.store import ScheduleStore
from tests.stores.bench import FAR_OFF, HOURLY, LONG_AGO, Bench, keys_of, soon

TOO_LATE = r"2038|32|2147483647"
"""What an error must contain if a time does not fit into 32 bits."""

LOOK_ALIKES = [
    ["key", "Key", "KEY", "ｋｅｙ"],
    ["key", "key ", "key  ", " key", "key\t", "key\n"],
    ["\u00e9", "e\u0301", "e", "E", "\u00c9"],
    ["ß", "ss", "SS", "ẞ", "ſs"],
    ["i", "İ", "ı", "I", "i\u0307"],
    ["a\u200bb", "ab", "a\u00adb", "a\u200db"],
    ["😀", "😁", "🍣", "🍺", "\U0001f469\u200d\U0001f680"],
    ["か", "が", "カ", "ｶ", "か\u3099"],
    ["ä", "a", "æ", "ae", "å", "aa"],
    ["1", "01", "1.0", "1e0", "+1"],
    ["%", "_", "%%", "a%", "a_", "\\", "\\\\", "'", "''", '"', "`", ";--", ":key", "%s", "%(key)s", "?"],
]


def test_keys_that_look_alike_are_different_keys(bench: Bench, store: ScheduleStore) -> None:
    keys = sorted({key for keys in LOOK_ALIKES for key in keys if bench.takes(key)})
    for n, key in enumerate(keys):
        bench.add(store, key, due=LONG_AGO + n, data={"n": n})
    for n, key in enumerate(keys):
        row = store.get(key)
        assert row is not None
        assert (row.key, row.data) == (key, {"n": n})
    claims = store.acquire(100, 100)
    assert keys_of(claims) == keys
    assert [lease and lease.key for lease in store.extend([claim.lease for claim in claims], 200)] == keys
    for key in keys[::2]:
        store.delete(key)
    assert {row.key for row in store.list()} == set(keys[1::2])


def test_a_key_may_have_255_characters(bench: Bench, store: ScheduleStore) -> None:
    keys = [key for c in "aä€😀" if bench.takes(c) for key in (c * 255, c * 254 + "x", c * 254)]
    for n, key in enumerate(keys):
        bench.add(store, key, due=LONG_AGO + n)
    for key in keys:
        with pytest.raises(AlreadyExistsError):
            bench.add(store, key)
    claims = store.acquire(20, 100)
    assert keys_of(claims) == keys
    for claim in claims:
        assert store.advance(claim, FAR_OFF, FAR_OFF, soon()) is None


def test_a_type_may_be_any_text(bench: Bench, store: ScheduleStore) -> None:
    types = ["😀" * 255, "Type", "type ", "a.b", "'%s'"]
    for n, type_ in enumerate(types):
        bench.add(store, f"key{n}", due=LONG_AGO + n, type=type_)
    assert [row.type for row in store.list()] == types


def test_types_are_distinguished_to_the_letter(bench: Bench, store: ScheduleStore) -> None:
    types = ["type", "Type", "type ", "tÿpe"]
    for n, type_ in enumerate(types):
        bench.add(store, f"key{n}", type=type_)
    if not bench.compat:
        assert keys_of(store.acquire(10, 100, types=["Type"])) == ["key1"]
        assert keys_of(store.acquire(10, 100, types=["type "])) == ["key2"]
    assert {row.type for row in store.list()} == set(types)


def nested(depth: int) -> dict[str, Any]:
    return {"in": nested(depth - 1)} if depth else {}


DATA: dict[str, dict[str, Any]] = {
    "empty": {},
    "unicode": {"ключ": "значение", "日本語": "テキスト", "😀": "🍣\u200d\u0000\u001f\u2028\ufffe"},
    "quotes": {"a": "'\"\\/</script>%s:x?`\r\n\t", "": ""},
    "numbers": {"big": 2**70, "float": 0.1 + 0.2, "small": 5e-324, "negative": -0.0, "exact": 9007199254740993},
    "values": {"list": [[], {}, None, True, False, [[[]]]], "null": None},
    "order": {"z": 1, "a": 2, "m": {"z": 1, "a": 2}},
    "nested": nested(100),
    "large": {"text": "ä€😀" * 120_000},
    "wide": {f"member{n}": n for n in range(5000)},
}


def test_data_comes_back_as_it_was(bench: Bench, store: ScheduleStore) -> None:
    for n, (name, data) in enumerate(DATA.items()):
        bench.add(store, name, due=LONG_AGO + n, data=data)
        row = store.get(name)
        assert row is not None
        assert row.data == data, name
        assert list(row.data) == list(data), name
    claimed = {claim.row.key: claim.row.data for claim in store.acquire(20, 100)}
    listed = {row.key: row.data for row in store.list()}
    assert all(claimed[name] == listed[name] == data for name, data in DATA.items())


def test_modified_data_come_back_as_they_are(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "key")
    for name, data in DATA.items():
        seen = store.get("key")
        assert seen is not None
        assert store.modify(seen, replace(seen, data={"back": data})), name
        assert next(iter(store.list())).data == {"back": data}, name


def test_the_callers_data_is_left_alone(bench: Bench, store: ScheduleStore) -> None:
    data = {"n": [1]}
    bench.add(store, "key", data=data)
    bench.take(store, "key")
    assert data == {"n": [1]}


def test_times_beyond_2038_are_stored_or_clearly_refused(bench: Bench, store: ScheduleStore) -> None:
    for time in (2**31 - 1, 2**31, 5_000_000_000, 253_402_300_799):
        key = f"key {time}"
        if bench.compat and time >= 2**31:
            with pytest.raises((ValueError, NotSupportedError), match=TOO_LATE) as caught:
                bench.add(store, key, due=time)
            assert not isinstance(caught.value, AlreadyExistsError)
            assert store.get(key) is None
        else:
            bench.add(store, key, due=time)
            row = store.get(key)
            assert row is not None
            assert (row.next_time, row.next_run_time) == (time, time)


def test_an_occurrence_beyond_2038_is_reached_or_clearly_refused(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "key")
    claim = bench.take(store, "key")
    before = bench.raw("key")
    if not bench.compat:
        assert store.advance(claim, 5_000_000_000, 5_000_000_030, soon()) is None
        row = store.get("key")
        assert row is not None
        assert (row.next_time, row.next_run_time) == (5_000_000_000, 5_000_000_030)
        return
    with pytest.raises((ValueError, NotSupportedError), match=TOO_LATE):
        store.advance(claim, 5_000_000_000, 5_000_000_030, soon())
    assert bench.raw("key") == before


def test_a_modified_time_beyond_2038_is_stored_or_clearly_refused(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "key")
    seen = store.get("key")
    assert seen is not None
    wanted = replace(seen, next_time=5_000_000_000, next_run_time=5_000_000_000)
    if not bench.compat:
        assert store.modify(seen, wanted)
        return
    with pytest.raises((ValueError, NotSupportedError), match=TOO_LATE):
        store.modify(seen, wanted)
    assert store.get("key") == seen


def test_a_negative_delay_is_stored_and_due_before_its_occurrence(bench: Bench, store: ScheduleStore) -> None:
    rule = replace(HOURLY, delay=-600)
    time = int(store.now()) + 300
    store.add("key", "type1", rule, time, time - 600, {})
    row = bench.take(store, "key").row
    assert row.scheduled_time == time
    seen = store.get("key")
    assert seen is not None
    assert seen.rule == rule


def test_times_about_1970_are_times_too(bench: Bench, store: ScheduleStore) -> None:
    times = [-86_400, -1, 0, 1]
    for time in times:
        bench.add(store, f"key {time}", due=time)
    assert [claim.row.scheduled_time for claim in store.acquire(10, 100)] == times


def test_fractions_of_a_second_are_kept_or_rounded_up(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "key", due=FAR_OFF + 0.25)
    row = store.get("key")
    assert row is not None
    assert row.next_run_time == (FAR_OFF + 1 if bench.compat else FAR_OFF + 0.25)


def test_a_fraction_in_the_delay_is_kept_or_refused(bench: Bench, store: ScheduleStore) -> None:
    rule = Rule("0 * * * *", "UTC", 1.5)
    if bench.compat:
        with pytest.raises((ValueError, ScheduleError), match="delay"):
            store.add("key", "type1", rule, LONG_AGO, LONG_AGO + 1.5, {})
        return
    store.add("key", "type1", rule, LONG_AGO, LONG_AGO + 1.5, {})
    claim = bench.take(store, "key")
    assert store.advance(claim, FAR_OFF, FAR_OFF + 1.5, soon()) is None
    row = store.get("key")
    assert row is not None
    assert (row.rule, row.next_run_time) == (rule, FAR_OFF + 1.5)


def test_time_zones_of_any_known_length_are_stored(bench: Bench, store: ScheduleStore) -> None:
    rule = Rule("0 0 1 1 *", "America/Argentina/ComodRivadavia")
    bench.add(store, "key", rule=rule)
    row = store.get("key")
    assert row is not None
    assert row.rule == rule


def test_a_long_cron_expression_is_stored_or_is_an_error(bench: Bench, store: ScheduleStore) -> None:
    fits = ",".join(f"{n}" for n in range(45))[:119] + " * * * *"
    bench.add(store, "fits", rule=Rule(fits, "UTC"))
    row = store.get("fits")
    assert row is not None
    assert row.rule.cron == fits
    long = Rule(",".join(f"{n}" for n in range(60)) + " * * * *", "UTC")
    with contextlib.suppress(sa.exc.DBAPIError, ValueError):
        bench.add(store, "long", rule=long)
    row = store.get("long")
    assert row is None or row.rule == long, "a rule was cut off"

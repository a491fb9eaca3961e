"""`@every` and `@at`: their occurrences, their descriptions in words, and the values that they refuse."""

from __future__ import annotations

from datetime import date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psched import cron
from psched.cron.explanation import in_words, why
from psched.cron.occurrences import next_match
from psched.errors import ConfigError


@given(st.integers(1, 10_000), st.data(), st.integers(-10_000, 10**10), st.integers(0, 50_000))
def test_instants_are_multiples_of_the_interval_plus_the_phase(
    seconds: int, data: st.DataObject, after: int, span: int
) -> None:
    phase = data.draw(st.integers(0, seconds - 1))
    text = f"@every {seconds}s phase {phase}"
    found = cron.next_time(text, after, "Europe/Berlin")
    assert after < found <= after + seconds
    assert (found - phase) % seconds == 0
    times = [time for time in range(after + 1, after + min(span, 500) + 1) if (time - phase) % seconds == 0]
    assert cron.count(text, after, after + min(span, 500), "UTC") == len(times)
    assert cron.last_time(text, after, after + min(span, 500), "UTC") == (times[-1] if times else None)


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("@at 2027-03-01T09:00", "UTC", "2027-03-01T09:00:00+00:00"),
        ("@AT 2027-03-01 09:00:30", "Asia/Tokyo", "2027-03-01T09:00:30+09:00"),
        ("@at 2026-10-25T02:30", "Europe/Berlin", "2026-10-25T02:30:00+02:00"),
        ("@at 2026-03-29T02:30", "Europe/Berlin", "2026-03-29T03:00:00+02:00"),
        ("@at 2011-12-30T12:00", "Pacific/Apia", "2011-12-31T00:00:00+14:00"),
    ],
)
def test_a_moment_comes_once_though_its_wall_time_comes_twice_or_never(text: str, zone: str, expected: str) -> None:
    instant = int(datetime.fromisoformat(expected).timestamp())
    cron.validate(text, zone)
    assert next_match(text, 0, zone, "vixie") == next_match(text, instant - 1, zone, "perfectsched") == instant
    assert next_match(text, instant, zone, "vixie") is None
    assert cron.count(text, 0, 10**10, zone) == cron.count(text, instant - 1, instant, zone) == 1
    assert cron.count(text, instant, 10**10, zone) == 0
    assert cron.last_time(text, 0, 10**10, zone) == instant
    assert [each.time for each in cron.occurrences(text, 0, zone, 5)] == [instant]


def test_notes_tell_of_clock_changes() -> None:
    assert cron.occurrences("@at 2026-03-29T02:30", 0, "Europe/Berlin", 1)[0].note == "runs late: 02:30 does not exist"
    assert "comes twice" in cron.occurrences("@at 2026-10-25T02:30", 0, "Europe/Berlin", 1)[0].note
    assert {each.note for each in cron.occurrences("@every 30m", 1792886400, "Europe/Berlin", 20)} == {""}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("@every", "expected '@every DURATION' or"),
        ("@every 5m 30s", "expected '@every DURATION' or"),
        ("@every 5x", "interval '5x'; expected whole seconds or a duration"),
        ("@every 0s", "interval '0s'; expected"),
        ("@every 1.5s", "interval '1.5s'; expected"),
        ("@every nan", "interval 'nan'; expected"),
        ("@every 1e9d", "interval '1e9d'; expected"),
        ("@every 5m phase 5m", r"phase '5m'; expected .* from 0 to 299 s"),
        ("@at", "expected '@at' and a local date and time without an offset"),
        ("@at 2027-02-30T09:00", "no such date or time; expected a date of the calendar"),
        ("@at 2027-03-01T24:30", "no such date or time; expected a date of the calendar"),
        ("@at 2027-03-01T09:00Z", "expected '@at' and a local date"),
        ("@at 2027-03-01T09:00+01:00", "expected '@at' and a local date"),
        ("@evry 5m", "expected one of .* @every or @at"),
    ],
)
def test_a_mistake_is_one_line_with_the_remedy(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cron.validate(text, "UTC")


def test_a_zone_that_does_not_exist_is_refused() -> None:
    for text in ("@at 2027-03-01T09:00", "@every 5m"):
        with pytest.raises(ConfigError, match="tz database"):
            cron.validate(text, "Europe/Nowhere")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("@every 5m", "every 5 minutes, counted from 1970-01-01 00:00 UTC"),
        ("@every 1h", "every hour, counted from 1970-01-01 00:00 UTC"),
        (
            "@every 90s phase 1m",
            "every 90 seconds, 1 minute after the full interval, counted from 1970-01-01 00:00 UTC",
        ),
        ("@at 2027-03-01T09:00", "once, at 2027-03-01 09:00"),
        ("@at 2027-03-01T09:00:01", "once, at 2027-03-01 09:00:01"),
    ],
)
def test_words(text: str, words: str) -> None:
    assert in_words(text) == words
    assert cron.excessive_step(text, "vixie") is None


def test_why_and_why_not() -> None:
    moment = "@at 2027-03-01T09:00"
    assert why(moment, "Europe/Berlin", date(2027, 3, 1)).matches
    assert why(moment, "Europe/Berlin", datetime.fromisoformat("2027-03-01T09:00")).matches
    for other in (date(2027, 3, 2), datetime.fromisoformat("2027-03-01T09:01")):
        verdict = why(moment, "Europe/Berlin", other)
        assert (verdict.matches, verdict.reasons) == (False, ("the only occurrence is 2027-03-01 09:00",))
    assert why("@every 36h", "Europe/Berlin", date(2026, 1, 4)).matches
    assert why("@every 36h", "UTC", datetime.fromisoformat("2026-01-04T00:00")).matches
    for asked, found in (
        (date(2026, 1, 3), "2026-01-04 00:00:00 UTC"),
        (datetime.fromisoformat("2026-01-04T00:01"), "2026-01-05 12:00:00 UTC"),
    ):
        verdict = why("@every 36h", "UTC", asked)
        assert (verdict.matches, verdict.reasons) == (False, (f"the next occurrence is {found}",))

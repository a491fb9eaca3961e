"""The times that cron expressions match, and the errors of wrong expressions."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from psched.cron import DIALECTS, MAX_LENGTH, first_time, next_time, validate
from psched.errors import ConfigError


def unix(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def times(cron: str, after: str, n: int, dialect: str = "vixie") -> list[str]:
    """Return the next n matches in UTC, without the seconds if these are 0, and without the time if it is midnight."""
    found, moment = [], unix(after)
    for _ in range(n):
        moment = next_time(cron, moment, "UTC", dialect)
        text = f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M:%S}"
        found.append(text.removesuffix(":00").removesuffix(" 00:00"))
    return found


MEANINGS = [
    ("* * * * *", ["2026-01-01 00:01", "2026-01-01 00:02"]),
    ("*/25 * * * *", ["2026-01-01 00:25", "2026-01-01 00:50", "2026-01-01 01:00"]),
    ("10 8-8 * * *", ["2026-01-01 08:10", "2026-01-02 08:10"]),
    ("10 8-8/2 * * *", ["2026-01-01 08:10", "2026-01-02 08:10"]),
    ("50/5 0 * * *", ["2026-01-01 00:50", "2026-01-01 00:55", "2026-01-02 00:50"]),
    ("59/15 0 * * *", ["2026-01-01 00:59", "2026-01-02 00:59"]),
    ("0 0,12,6-7 * * *", ["2026-01-01 06:00", "2026-01-01 07:00", "2026-01-01 12:00", "2026-01-02"]),
    ("*/20 * * * * *", ["2026-01-01 00:00:20", "2026-01-01 00:00:40", "2026-01-01 00:01"]),
    ("5 0 0 * * *", ["2026-01-01 00:00:05", "2026-01-02 00:00:05"]),
    ("0 0 * * 7", ["2026-01-04", "2026-01-11"]),
    ("0 0 * * 1-7", ["2026-01-02", "2026-01-03", "2026-01-04"]),
    ("0 0 * * fri-sun", ["2026-01-02", "2026-01-03", "2026-01-04", "2026-01-09"]),
    ("0 0 * * sun-sun", ["2026-01-04", "2026-01-11"]),
    ("0 0 * * 7-7", ["2026-01-04", "2026-01-11"]),
    ("0 0 * * 0-7", ["2026-01-02", "2026-01-03"]),
    ("0 0 * * */7", ["2026-01-04", "2026-01-11"]),
    ("0 0 * * 5/2", ["2026-01-02", "2026-01-04", "2026-01-09"]),
    ("0 0 1 JAN,mar *", ["2026-03-01", "2027-01-01"]),
    ("0 0 L * *", ["2026-01-31", "2026-02-28", "2026-03-31"]),
    ("0 0 15,L 2 *", ["2026-02-15", "2026-02-28", "2027-02-15"]),
    ("0 0 * * 5L", ["2026-01-30", "2026-02-27"]),
    ("0 0 * * friL", ["2026-01-30", "2026-02-27"]),
    ("0 0 * * 5#2", ["2026-01-09", "2026-02-13"]),
    ("0 0 * * 6,1#3", ["2026-01-03", "2026-01-10", "2026-01-17", "2026-01-19", "2026-01-24"]),
    ("0 0 * * 1#5", ["2026-03-30", "2026-06-29"]),
    ("0 0 13 * 5", ["2026-01-02", "2026-01-09", "2026-01-13", "2026-01-16"]),
    ("0 0 13 * 5#2", ["2026-01-09", "2026-01-13", "2026-02-13", "2026-03-13"]),
    ("0 0 */2 * 5", ["2026-01-09", "2026-01-23", "2026-02-13"]),
    ("0 0 13 * */5", ["2026-02-13", "2026-03-13", "2026-09-13"]),
    ("0 0 31 2 1", ["2026-02-02", "2026-02-09"]),
    ("@hourly", ["2026-01-01 01:00", "2026-01-01 02:00"]),
    ("@daily", ["2026-01-02"]),
    ("@Midnight", ["2026-01-02"]),
    ("@weekly", ["2026-01-04"]),
    ("@monthly", ["2026-02-01"]),
    ("@yearly", ["2027-01-01"]),
    ("@annually", ["2027-01-01"]),
    (" \t0  0\t1 1 * \n", ["2027-01-01"]),
]


@pytest.mark.parametrize(("cron", "expected"), MEANINGS)
def test_an_expression_means_these_times(cron: str, expected: list[str]) -> None:
    assert times(cron, "2026-01-01", len(expected)) == expected
    validate(cron, "UTC")


PERFECTSCHED = [
    ("10/15 0 * * *", ["2026-01-01 00:10", "2026-01-02 00:10"]),
    ("0 0 * * 5/2", ["2026-01-02", "2026-01-09"]),
    ("0 0 */2 * 5", ["2026-01-02", "2026-01-03", "2026-01-05"]),
    ("0 0 1-31 * 5", ["2026-01-02", "2026-01-03", "2026-01-04"]),
    ("0 0 13 * */5", ["2026-01-02", "2026-01-04", "2026-01-09", "2026-01-11", "2026-01-13"]),
    ("0 0 13 * *", ["2026-01-13", "2026-02-13"]),
    ("0 0 * * 5", ["2026-01-02", "2026-01-09"]),
    ("0 0 L * 5", ["2026-01-31", "2026-02-28"]),
    ("0 0 * * */7", ["2026-01-04", "2026-01-11"]),
    ("0 0 * * 0-7", ["2026-01-04", "2026-01-11"]),
    ("0 0 * * sun-7,sat", ["2026-01-03", "2026-01-04", "2026-01-10"]),
    ("0 0 * * 0-sun/2", ["2026-01-04", "2026-01-11"]),
    ("0 0 * * */73", ["2026-01-03", "2026-01-04", "2026-01-07"]),
    ("0 0 15,L * *", ["2026-01-15", "2026-02-15"]),
    ("0 0 L,31 * *", ["2026-01-31", "2026-03-31"]),
    ("0 0 15,L * 1", ["2026-01-05", "2026-01-12", "2026-01-15"]),
    ("0 0 * * 1-7", ["2026-01-02", "2026-01-03", "2026-01-04"]),
    ("0 0 * * fri-sun", ["2026-01-02", "2026-01-03", "2026-01-04", "2026-01-09"]),
    ("10 8-8 * * *", ["2026-01-01 08:10", "2026-01-02 08:10"]),
]


@pytest.mark.parametrize(("cron", "expected"), PERFECTSCHED)
def test_the_dialect_perfectsched_computes_the_times_that_ruby_does(cron: str, expected: list[str]) -> None:
    assert times(cron, "2026-01-01", len(expected), "perfectsched") == expected


RARE = [
    ("0 0 29 2 *", "2096-02-29", "2104-02-29"),
    ("0 0 29 2 */7", "2088-02-29", "2128-02-29"),  # on Sundays only: 40 years, since 2100 is no leap year
    ("0 0 29 2 */7", "9661-01-01", "9688-02-29"),
    ("0 0 */31 2 5#1", "2026-01-01", "2030-02-01"),
]


@pytest.mark.parametrize(("cron", "after", "expected"), RARE)
def test_rare_dates_are_found_however_far_away(cron: str, after: str, expected: str) -> None:
    assert times(cron, after, 1) == [expected]


REFUSED = [
    ("", "has 0 fields"),
    ("* * * *", "has 4 fields; expected minute hour"),
    ("* * * * * * *", "has 7 fields"),
    ("@reboot", "expected one of @hourly"),
    ("@dayly", "did you mean '@daily'?"),
    ("60 * * * *", "minute '60' is out of range; expected 0-59"),
    ("60 * * * * *", "second '60' is out of range"),
    ("0 24 * * *", "hour '24' is out of range"),
    ("0 0 0 * *", "day '0' is out of range"),
    ("0 0 32 * *", "day '32'"),
    ("0 0 1 13 *", "month '13'"),
    ("0 0 * * 8", "weekday '8'"),
    ("0 0 * * 8L", "weekday '8'"),
    ("0 0 * * mno", "did you mean 'mon'?"),
    ("0 0 L * xyz", "weekday 'xyz' is unknown"),
    ("0 0 1 fri *", "month 'fri' is unknown"),
    ("0 22-2 * * *", "hour '22-2' runs backwards; write '22-23,0-2'"),
    ("0 22-2/2 * * *", "runs backwards; write the values as a list"),
    ("0 0 * * fri-mon", "weekday 'fri-mon' runs backwards; write '5-6,0-1'"),
    ("0 0 * * 7-1", "weekday '7-1' runs backwards; write '0-1'"),
    ("0 0 1 dec-jan *", "write '12,1'"),
    ("H * * * *", "differs from host to host"),
    ("h(0-5) * * * *", "differs from host to host"),
    ("R/5 * * * *", "differs from host to host"),
    ("? * * * *", "write '*'"),
    ("0 0 ? * *", "write '*'"),
    ("0 0 15W * *", "day '15w' is not understood"),
    ("0 0 L-3 * *", "day 'l' is unknown"),
    ("0 0 * * 5#6", "weekday '5#6' is not understood"),
    ("0 0 * * 5#0", "weekday '5#0' is not understood"),
    ("0 0 5#2 * *", "day '5#2' is not understood"),
    ("*/0 * * * *", "steps by 0"),
    ("1/-5 * * * *", "minute '1/-5'"),
    ("-5 * * * *", "minute '-5'"),
    ("*-5 * * * *", "minute '*-5'"),
    ("1,,2 * * * *", "minute ''"),
    ("1.5 * * * *", "minute '1.5'"),
    ("\uff11 * * * *", "is not understood"),
    ("0\u00a00 * * *", "has 4 fields"),
    ("0 0 30 2 *", "never runs: there is no day 30 in February"),
    ("0 0 31 4,6,11 *", "never runs: there is no day 31 in April or June or November"),
    ("0," * 100 + "0 * * * *", f"{MAX_LENGTH} at most"),
    ("9" * 100 + " * * * *", "is out of range"),
]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("cron", "reason"), REFUSED)
def test_a_wrong_expression_is_refused_in_one_line_with_the_reason(cron: str, reason: str, dialect: str) -> None:
    for call in (lambda: validate(cron, "UTC", dialect), lambda: first_time(cron, 0, "UTC", dialect)):
        with pytest.raises(ConfigError) as caught:
            call()
        message = str(caught.value)
        assert reason in message
        assert "\n" not in message
        assert message.startswith(f"cron {cron[:40]!r}"[:40])


@pytest.mark.parametrize(
    ("cron", "reason"),
    [("0 0 30 2 */2", "there is no day 30 in February"), ("0 0 */31 * 5#2", "no day fits both '*/31' and '5#2'")],
)
def test_dates_are_impossible_where_both_day_fields_must_match(cron: str, reason: str) -> None:
    with pytest.raises(ConfigError, match="never runs") as caught:
        validate(cron, "UTC")
    assert reason in str(caught.value)
    validate(cron, "UTC", "perfectsched")


def test_an_unknown_dialect_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"cron_dialect 'perfectshed': expected .* did you mean 'perfectsched'"):
        validate("* * * * *", "UTC", "perfectshed")

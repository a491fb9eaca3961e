"""psched explain: a cron expression in words, and why it was due on a date, or was not."""

from __future__ import annotations

from tests.cli.commands import Commands


def test_it_needs_no_configuration(fresh: Commands) -> None:
    assert fresh.ok("explain", "0 9 * * mon-fri").out == "0 9 * * mon-fri  UTC: at 09:00 from Monday to Friday\n"


def test_it_says_why_a_date_does_not_match(fresh: Commands) -> None:
    out = fresh.ok("explain", "0 9 * * mon-fri", "-t", "Europe/Berlin", "--at", "2026-11-29").out
    assert "Sun 2026-11-29: not due" in out
    assert "because the date is a Sunday, the expression wants Monday to Friday" in out


def test_it_lists_the_occurrences_of_a_date_with_their_notes(fresh: Commands) -> None:
    out = fresh.ok("explain", "30 2 * * *", "-t", "Europe/Berlin", "--at", "2027-03-28").out
    assert "Sun 2027-03-28: due" in out
    assert "Sun 2027-03-28 03:00:00 CEST  runs late: 02:30 does not exist" in out
    [found] = fresh.ok("explain", "30 2 * * *", "-t", "Europe/Berlin", "--at", "2027-03-28T02:30", "--json").json
    assert found["matches"] is False
    assert found["words"] == "at 02:30 every day"
    assert [each["local"] for each in found["occurrences"]] == ["2027-03-28T03:00:00+02:00"]


def test_a_schedule_is_explained_by_the_rule_that_was_in_force(psched: Commands) -> None:
    psched.ok("add", "nightly", "t", "0 3 * * *", "{}", "-t", "Asia/Tokyo", "--start", "2027-03-01T00:00+09:00")
    psched.ok("modify", "nightly", "--cron", "0 4 * * sun", "--start", "2027-03-10T00:00+09:00")
    assert "at 04:00 on Sunday" in psched.ok("explain", "-k", "nightly").out
    assert "at 03:00 every day" in psched.ok("explain", "-k", "nightly", "--at", "2027-03-02").out
    later = psched.ok("explain", "-k", "nightly", "--at", "2027-03-15").out
    assert "at 04:00 on Sunday" in later
    assert "because the date is a Monday, the expression wants Sunday" in later
    psched.ok("modify", "nightly", "--overlap", "skip")
    skips = "at 04:00 on Sunday, skipped if it comes due during the previous run"
    assert psched.ok("explain", "-k", "nightly").out.strip().endswith(skips)
    assert "skipped if" not in psched.ok("explain", "-k", "nightly", "--at", "2027-03-02").out


def test_wrong_input_is_named(fresh: Commands) -> None:
    for arguments, words in _WRONG.items():
        outcome = fresh("explain", *arguments)
        assert (outcome.code, outcome.out) == (2, "")
        assert words in outcome.err


_WRONG = {
    (): "either a cron expression or --key",
    ("@daily", "--at", "tomorrow"): "'tomorrow' is not a date; give a date such as",
    ("@daily", "--at", "2027-03-29T02:30+01:00"): "has an offset",
    ("-k", "x", "-t", "UTC"): "own zone",
}


def test_an_unknown_zone_is_refused_as_json_too(fresh: Commands) -> None:
    for form in ((), ("--json",)):
        assert "'Europe/Nowhere' is not a zone" in fresh.fault("explain", "@daily", "-t", "Europe/Nowhere", *form)


def test_a_schedule_that_never_was_is_named(psched: Commands) -> None:
    assert psched.fault("explain", "-k", "none") == "no schedule has or had the key 'none'"

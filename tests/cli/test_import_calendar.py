"""psched import calendar: the whole days of an .ics file become the dates of a named calendar."""

from __future__ import annotations

import sys
from datetime import UTC, date, datetime

import pytest

from tests.cli.commands import Commands

YEAR = datetime.now(UTC).year


def event(*lines: str) -> str:
    return "\r\n".join(("BEGIN:VEVENT", f"UID:{hash(lines)}", "DTSTAMP:20250101T000000Z", *lines, "END:VEVENT", ""))


def write(commands: Commands, *events: str) -> str:
    head = "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:-//test//EN\r\n"
    (commands.folder / "holidays.ics").write_text(head + "".join(events) + "END:VCALENDAR\r\n")
    return "holidays.ics"


def dates(commands: Commands, name: str = "holidays") -> list[str]:
    found: list[str] = commands.ok("calendar", "show", name, "--json").json["dates"]
    return found


CHRISTMAS = event(f"DTSTART;VALUE=DATE:{YEAR}1225", f"DTEND;VALUE=DATE:{YEAR}1227", "SUMMARY:Christmas")
NEW_YEAR = event("DTSTART;VALUE=DATE:20200101", "RRULE:FREQ=YEARLY")
FOURTH_THURSDAY = event("DTSTART;VALUE=DATE:20201126", "RRULE:FREQ=YEARLY;BYMONTH=11;BYDAY=4TH")
MEETING = event(f"DTSTART:{YEAR}0601T090000Z", f"DTEND:{YEAR}0601T100000Z")
CANCELLED = event(f"DTSTART;VALUE=DATE:{YEAR}0501", "STATUS:CANCELLED")
EXCEPT_ONCE = event("DTSTART;VALUE=DATE:20200801", "RRULE:FREQ=YEARLY", f"EXDATE;VALUE=DATE:{YEAR}0801")


def test_whole_days_become_dates(psched: Commands) -> None:
    write(psched, CHRISTMAS, NEW_YEAR, FOURTH_THURSDAY, MEETING, CANCELLED, EXCEPT_ONCE)
    out = psched.ok("import", "calendar", "holidays.ics", "--years", "2").out
    thursdays = [next(day for day in range(22, 29) if date(year, 11, day).weekday() == 3) for year in (YEAR, YEAR + 1)]
    assert dates(psched) == [
        f"{YEAR}-01-01",
        f"{YEAR}-11-{thursdays[0]}",
        f"{YEAR}-12-25",
        f"{YEAR}-12-26",
        f"{YEAR + 1}-01-01",
        f"{YEAR + 1}-08-01",
        f"{YEAR + 1}-11-{thursdays[1]}",
    ]
    assert out == (
        f"holidays: 7 dates from {YEAR}-01-01 to {YEAR + 1}-11-{thursdays[1]}; events with a time of day, left out: 1\n"
    )


def test_another_import_replaces_the_dates(psched: Commands) -> None:
    psched.ok("import", "calendar", write(psched, NEW_YEAR), "--name", "off", "--years", "1")
    assert dates(psched, "off") == [f"{YEAR}-01-01"]
    found = psched.ok("import", "calendar", write(psched, CHRISTMAS), "--name", "off", "--json").json
    assert (found["name"], found["version"], found["dates"]) == ("off", 2, [f"{YEAR}-12-25", f"{YEAR}-12-26"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "holidays.ics: the calendar cannot be read"),
        ("", "holidays.ics: no calendar in this file"),
        (
            f"BEGIN:VCALENDAR\r\n{MEETING}END:VCALENDAR\r\n",
            f"no all-day event from {YEAR} to {YEAR + 4}",
        ),
    ],
)
def test_a_file_without_days_is_a_mistake_and_changes_nothing(psched: Commands, text: str, message: str) -> None:
    (psched.folder / "holidays.ics").write_text(text)
    assert message in psched.fault("import", "calendar", "holidays.ics")
    assert psched.ok("calendar", "list").out == ""


def test_a_missing_library_names_the_extra(psched: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "psched.importers.calendar_file", raising=False)
    monkeypatch.setitem(sys.modules, "recurring_ical_events", None)
    assert "pip install 'psched[ics]'" in psched.fault("import", "calendar", write(psched, NEW_YEAR))

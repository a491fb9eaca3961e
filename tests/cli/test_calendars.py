"""Named calendars by the command line."""

from __future__ import annotations

from tests.cli.commands import Commands


def test_a_calendar_is_set_listed_shown_and_deleted(psched: Commands) -> None:
    psched.ok("calendar", "set", "holidays", "2030-12-25", "2030-12-26", "sun")
    psched.ok("add", "key", "t", "0 9 * * *", "{}", "--exclude", "holidays")
    assert psched.ok("calendar", "list").out == "holidays\tversion 1: 2 dates, and every sun\n"
    assert psched.ok("calendar", "show", "holidays").out == (
        "holidays, version 1\n  sun\n  2030-12-25\n  2030-12-26\n  excluded by key\n"
    )
    changed = psched.ok("calendar", "set", "holidays", "2030-12-25", "--json").json
    assert changed == {"name": "holidays", "version": 2, "dates": ["2030-12-25"], "weekdays": []}
    assert psched.ok("show", "key", "--json").json["exclude"] == ["holidays"]
    assert "exclude        holidays\n" in psched.ok("show", "key").out
    out = psched("explain", "--key", "key", "--at", "2030-12-25").out
    assert "not due\n  because Wed 2030-12-25 is a day of the calendar 'holidays' (version 2)\n" in out
    assert psched.ok("explain", "--key", "key").out.endswith("every day, not on days of holidays\n")
    assert psched.fault("calendar", "delete", "holidays").startswith("schedules exclude the calendar 'holidays': 'key'")
    copy = psched.folder / "copy.json"
    copy.write_text(psched.ok("list", "--json").out)
    psched.ok("delete", "key")
    psched.ok("import", "json", str(copy))
    assert psched.ok("calendar", "show", "holidays", "--json").json["schedules"] == ["key"]
    psched.ok("modify", "key", "--exclude", "")
    psched.ok("calendar", "delete", "holidays")
    assert psched.ok("calendar", "list", "--json").json == []
    assert "no calendar 'holidays'" in psched.fault("modify", "key", "--exclude", "holidays")
    assert psched.fault("calendar", "show", "holidays") == (
        "there is no calendar 'holidays' (create it with `psched calendar set`)"
    )
    assert "expected a date such as" in psched.fault("calendar", "set", "holidays", "25.12.2030")

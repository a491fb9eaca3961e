"""Files of schedules: their meaning, the faults that psched finds, and that a written file can be read again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psched.backends import open_stores
from psched.errors import ConfigError
from psched.model import LeaseTimes, NewSchedule
from psched.schedules.collection import Defaults, ScheduleCollection
from psched.schedules_file.reader import Check, parse_schedules, read_schedules_file
from psched.schedules_file.writer import schedules_text
from psched.store import StoreSettings


@pytest.fixture(scope="module")
def check() -> Iterator[Check]:
    store = open_stores("rdb", StoreSettings("sqlite://", "host/test/1", schedules="psched_schedules")).schedules
    assert store is not None
    with ScheduleCollection(store, LeaseTimes(300, 300), Defaults()) as collection:
        yield collection.check


def faults(text: str, check: Check | None = None) -> list[str]:
    with pytest.raises(ConfigError) as error:
        parse_schedules(dedent(text), "jobs.yml", check)
    return str(error.value).splitlines()


def test_a_file_is_read_into_new_schedules(tmp_path: Path, check: Check) -> None:
    file = tmp_path / "jobs.yml"
    file.write_text(
        dedent(
            """\
            owner: billing
            defaults:
              timezone: Europe/Berlin
              alert_after: 15m
            schedules:
              nightly: {type: report.nightly, cron: "0 3 * * *", data: {kind: full, from: 2026-01-01}}
              hourly:
                type: report
                cron: "@hourly"
                timezone: UTC
                delay: -90
                max_lateness: 1.5h
                max_attempts: 3
                alert_after: null
            """
        )
    )
    declared = read_schedules_file(file, check)
    assert declared.owner == "billing"
    assert list(declared.schedules) == [
        NewSchedule(
            "nightly",
            "report.nightly",
            "0 3 * * *",
            timezone="Europe/Berlin",
            data={"kind": "full", "from": "2026-01-01"},
            alert_after=900,
        ),
        NewSchedule("hourly", "report", "@hourly", -90, "UTC", max_lateness=5400, max_attempts=3),
    ]
    assert declared.place("hourly") == f"{file}:7: schedules.hourly"


def test_every_fault_is_one_line_with_its_place_and_the_remedy(check: Check) -> None:
    found = faults(
        """\
        schedule: {}
        owner: ""
        defaults: {timezon: UTC}
        schedules:
          a:
            type: report
            cron: "0 3 * *"
          b: {type: report}
          c:
            type: report
            cron: "@daily"
            alert_after: soon
          d: report
          8: {type: report, cron: "@daily"}
          e: {cron: "@daily", every: 5m}
          f: {type: report, cron: "@daily", catch_up: some, data: {}}
          g: {type: report, cron: "@daily", data: [1]}
          h: {type: report, cron: "@daily", data: {1: 2}}
          i: {type: report, cron: "@daily", data: {a: !!set {b}}}
        """,
        check,
    )
    assert [line.split(": ", 2)[:2] for line in found] == [
        ["jobs.yml:1", "schedule"],
        ["jobs.yml:2", "owner"],
        ["jobs.yml:3", "defaults.timezon"],
        ["jobs.yml:7", "schedules.a.cron"],
        ["jobs.yml:8", "schedules.b"],
        ["jobs.yml:12", "schedules.c.alert_after"],
        ["jobs.yml:13", "schedules.d"],
        ["jobs.yml:14", "schedules.8"],
        ["jobs.yml:15", "schedules.e"],
        ["jobs.yml:15", "schedules.e"],
        ["jobs.yml:16", "schedules.f.catch_up"],
        ["jobs.yml:17", "schedules.g.data"],
        ["jobs.yml:18", "schedules.h.data"],
        ["jobs.yml:19", "schedules.i.data"],
    ]
    assert "did you mean 'schedules'?" in found[0]
    assert "did you mean 'timezone'?" in found[2]
    assert "give one of cron, every and at" in found[4]
    assert "such as 90s, 5m, 2h or 1d, got 'soon'" in found[5]
    assert "put it in quotes" in found[7]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "jobs.yml: expected `owner:` and `schedules:`, got None"),
        ("schedules: {}", "jobs.yml: owner: missing"),
        ("owner: billing", "jobs.yml: schedules: missing"),
        ("owner: billing\nschedules:", "jobs.yml:2: schedules: expected a mapping, got nothing"),
        ("owner: billing\nschedules: {a: {}, a: {}}", "jobs.yml:2: not valid YAML: duplicate key 'a'"),
        ("owner: ]", "jobs.yml:1: not valid YAML"),
        ("owner: \x01", "jobs.yml: not valid YAML"),
        ("owner: !!str [a]", "jobs.yml:1: not valid YAML: expected a scalar node"),
        ("[" * 100_000, "jobs.yml: not usable: nested too deeply"),
        ("[" * 500 + "]" * 500, "jobs.yml: not usable: nested too deeply"),
        ("\n".join(" " * depth + "a:" for depth in range(500)), "jobs.yml: not usable: nested too deeply"),
    ],
)
def test_a_file_that_cannot_be_read_gets_one_line(text: str, fault: str) -> None:
    found = faults(text)
    assert found[0].startswith(fault)
    assert len(found) == 1


def test_a_wait_that_grows_is_given_as_in_commands(check: Check) -> None:
    text = "owner: me\nschedules: {{a: {{type: t, cron: '@daily', retry_wait: {}}}}}"
    [schedule] = parse_schedules(text.format("10s..5m"), "jobs.yml", check).schedules
    assert schedule.retry_wait == {"first": 10, "limit": 300}
    assert faults(text.format("10s..soon"))[0].endswith("or FIRST..LIMIT such as 10s..5m, got '10s..soon'")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yml: there is no such file; name one$"):
        read_schedules_file(tmp_path / "none.yml")


def test_many_faults_are_counted() -> None:
    keys = "\n".join(f"  k{number}: {{}}" for number in range(30))
    found = faults(f"owner: billing\nschedules:\n{keys}\n")
    assert len(found) == 21
    assert found[-1] == "jobs.yml: … and 40 more faults"


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(TEXTS, values, max_size=3),
    max_leaves=5,
)
SECONDS = st.integers(0, 10**7) | st.floats(0, 10**7)
SCHEDULES = st.builds(
    NewSchedule,
    TEXTS,
    TEXTS,
    st.sampled_from(["@daily", "*/5 * * * *"]) | TEXTS,
    delay=SECONDS,
    next_time=st.none(),
    next_run_time=st.none(),
    max_lateness=st.none() | SECONDS,
    timezone=st.sampled_from(["UTC", "Asia/Tokyo"]),
    data=st.dictionaries(TEXTS, VALUES, max_size=3),
    catch_up=st.sampled_from(["all", "latest", "none"]),
    alert_after=st.none() | SECONDS,
    max_attempts=st.none() | st.integers(1, 9),
    owner=st.none(),
    description=st.none() | TEXTS,
    tags=st.just(()) | st.lists(TEXTS, min_size=1, max_size=3),
    start=st.none() | st.integers(0, 10**9),
    end=st.none() | st.integers(0, 10**9),
    spread=SECONDS,
    max_runs=st.none() | st.integers(1, 9),
    exclude=st.just(()) | st.lists(TEXTS, min_size=1, max_size=3),
    overlap=st.sampled_from(["wait", "skip"]),
    pause_after=st.none() | st.integers(1, 9),
    retry_wait=st.none() | SECONDS | st.fixed_dictionaries({"first": SECONDS, "limit": SECONDS}),
    timeout=st.none() | SECONDS,
    on_failure=st.none() | TEXTS,
)


@given(st.lists(SCHEDULES, max_size=4, unique_by=lambda each: each.key), TEXTS)
def test_what_is_written_is_read_again(schedules: list[NewSchedule], owner: str) -> None:
    text = "\n".join(schedules_text(owner, schedules))
    declared = parse_schedules(text, "jobs.yml")
    assert declared.owner == owner
    assert list(declared.schedules) == schedules


def test_a_written_file_is_as_a_person_writes_it() -> None:
    new = NewSchedule("a", "t", "@daily", 90, "UTC", data={"n": 1}, alert_after=900)
    other = NewSchedule("b", "t", "@daily", 86400, "Asia/Tokyo")
    assert "\n".join(schedules_text("us", [new, new._replace(key="c"), other])) == dedent(
        """\
        owner: us
        defaults:
          timezone: UTC
        schedules:
          a:
            type: t
            cron: '@daily'
            delay: 90
            data:
              n: 1
            alert_after: 15m
          c:
            type: t
            cron: '@daily'
            delay: 90
            data:
              n: 1
            alert_after: 15m
          b:
            type: t
            cron: '@daily'
            delay: 1d
            timezone: Asia/Tokyo"""
    )

"""The accepted time zones, and facts about clock changes on which cron relies."""

from __future__ import annotations

import struct
import zoneinfo
from importlib import resources
from itertools import pairwise
from pathlib import Path

import pytest
import tzdata

from psched.cron import check_timezone, next_time, tz_database, validate
from psched.cron.expression import DAY
from psched.cron.occurrences import EARLIEST, LATEST
from psched.cron.zones import load_zone
from psched.errors import ConfigError

REFUSED = [
    ("localtime", "differs from host to host"),
    ("posixrules", "differs from host to host"),
    ("/usr/share/zoneinfo/UTC", "is not a zone"),
    ("../zones", "is not a zone"),
    ("Europe", "is not a zone"),
    ("Europe/", "is not a zone"),
    ("", "is not a zone"),
    ("JST-9", "is not a zone"),
    ("asia/tokyo", "did you mean 'Asia/Tokyo'?"),
    ("Tokyo", "did you mean 'Asia/Tokyo'?"),
    ("new york", "did you mean 'America/New_York'?"),
    ("US/Pacfic", "did you mean 'US/Pacific'?"),
    ("UTC\0", "is not a zone"),
]


@pytest.mark.parametrize(("name", "reason"), REFUSED)
def test_a_wrong_zone_is_refused_in_one_line_with_a_suggestion(name: str, reason: str) -> None:
    for call in (lambda: check_timezone(name), lambda: validate("* * * * *", name), lambda: load_zone(name)):
        with pytest.raises(ConfigError) as caught:
            call()
        assert reason in str(caught.value)
        assert "\n" not in str(caught.value)


def test_zones_come_from_the_tzdata_package_whatever_the_host_has(tmp_path: Path) -> None:
    (tmp_path / "Pacific").mkdir()
    utc = resources.files(tzdata).joinpath("zoneinfo", "UTC").read_bytes()
    (tmp_path / "Pacific" / "Apia").write_bytes(utc)  # a host with other ideas
    zoneinfo.reset_tzpath(to=[str(tmp_path)])
    load_zone.cache_clear()
    try:
        check_timezone("Pacific/Apia")
        assert next_time("0 12 * * *", 1325152800, "Pacific/Apia") == 1325196000
        assert tz_database() == tzdata.IANA_VERSION
    finally:
        zoneinfo.reset_tzpath()


def test_time_ends_before_the_year_9999_and_begins_in_the_year_1() -> None:
    for beyond in (LATEST, 10**12, 10**30):
        with pytest.raises(ConfigError, match=r"no match after .* before the year 9999"):
            next_time("* * * * *", beyond, "Asia/Tokyo")
    assert next_time("* * * * * *", LATEST - 1, "Asia/Tokyo") == LATEST
    assert next_time("* * * * * *", -(10**30), "Asia/Tokyo") == EARLIEST


def test_no_zone_puts_its_clock_back_by_more_than_a_day_nor_changes_it_twice_in_two_days() -> None:
    names = resources.files(tzdata).joinpath("zones").read_text().split()
    assert len(names) > 400
    for name in names:
        changes = offset_changes(resources.files(tzdata).joinpath("zoneinfo", *name.split("/")).read_bytes())
        assert all(by >= -DAY for _, by in changes), name
        assert all(later[0] - earlier[0] > 2 * DAY for earlier, later in pairwise(changes)), name


def offset_changes(data: bytes) -> list[tuple[int, int]]:
    """Return each change in a TZif file (RFC 9636): its time, and the seconds by which it puts the clock forward."""
    header = struct.Struct(">4s1s15x6l")
    _, _, isut, isstd, leap, times, types, chars = header.unpack_from(data)
    start = header.size + times * 5 + types * 6 + chars + leap * 8 + isstd + isut
    _, _, _, _, _, times, types, _ = header.unpack_from(data, start)
    start += header.size
    instants = struct.unpack_from(f">{times}q", data, start)
    kinds = (0, *struct.unpack_from(f">{times}B", data, start + times * 8))
    offsets = [struct.unpack_from(">l", data, start + times * 9 + kind * 6)[0] for kind in kinds]
    steps = zip(instants, pairwise(offsets), strict=True)
    return [(instant, new - old) for instant, (old, new) in steps if new != old]

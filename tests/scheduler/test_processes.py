"""Several processes with the same registrations, some of which are killed.

The records of their handlers are checked.
"""

from __future__ import annotations

import re
import time
from collections import Counter

import pytest

from faultlab.laboratory import Lab
from psched.clock import boottime
from tests.scheduler.site import Instance, Launcher, Site

EVERY_SECOND = "*/1 * * * * *"
_KILLS = 4


def begun(site: Site, name: str) -> Counter[int]:
    """Return how often handlers began each occurrence of a registration."""
    return Counter(line["occurrence"] for line in site.lines("begin") if line["key"].startswith(f"{name}@"))


def unsettled(site: Site, name: str) -> set[int]:
    """Return the occurrences that a process has begun and, according to its log, has not settled."""
    settled = {
        (key, int(log.stem))
        for log in site.folder.glob("*.err")
        for key in re.findall(rf"key=({name}@\d+) type={name} finished", log.read_text())
    }
    return {line["occurrence"] for line in site.lines("begin") if (line["key"], line["pid"]) not in settled}


def gaps(occurrences: Counter[int]) -> set[int]:
    """Return the seconds between the first and the last occurrence at which no handler began."""
    return set(range(min(occurrences), max(occurrences) + 1)) - occurrences.keys()


@pytest.mark.in_suite_on("redis")
def test_each_occurrence_fires_once_while_processes_are_killed(sqlite_and_redis: Site) -> None:
    """With retry no occurrence is missed, and an occurrence that a killed process had begun is begun again.

    Without retry an occurrence begins at most once. It is lost if its process dies between the acquire and the begin.
    """
    site = sqlite_and_redis
    registrations = (
        {"name": "work", "cron": EVERY_SECOND, "retry": True, "retry_timeout": 1},
        {"name": "work once", "cron": EVERY_SECOND},
    )
    instances = [site.process(*registrations) for _ in range(4)]
    for instance in instances:
        instance.wait_until_up()
    for number in range(_KILLS):
        begin = boottime()
        site.wait_for(lambda begin=begin: boottime() > begin + 1.3)  # type: ignore[misc]
        instances[number - 1].wait_until_up()  # with no instance alive, occurrences would be skipped
        instances[number].kill()
        instances[number] = site.process(*registrations)
    count = len(begun(site, "work"))
    site.wait_for(lambda: len(begun(site, "work")) > count + 3)
    for instance in instances:
        instance.wait_until_up().stop()
    again, once = begun(site, "work"), begun(site, "work once")
    assert len(again) > _KILLS
    assert not gaps(again)
    assert {occurrence for occurrence, number in again.items() if number > 1} <= unsettled(site, "work")
    assert len(once) > _KILLS
    assert max(once.values()) == 1
    assert len(gaps(once)) <= _KILLS


def test_a_task_whose_process_is_killed_in_its_handler_is_begun_again_after_retry_timeout(
    sqlite_and_redis: Site,
) -> None:
    site = sqlite_and_redis
    first, second = (site.process().wait_until_up() for _ in range(2))
    pushed = site.scheduler().push("first attempt hangs", retry=True, retry_timeout=3)
    begin = site.wait_for(lambda: next(iter(site.lines("begin")), None))
    row = site.opened().queue.get(pushed)
    assert row is not None and row.due is not None and row.due - site.now() < 5, "its lease is longer than it should be"
    victim, survivor = (first, second) if begin["pid"] == first.pid else (second, first)
    victim.kill()
    killed = boottime()
    end = site.wait_for(lambda: next(iter(site.lines("end")), None))
    assert (end["key"], end["pid"], end["attempts"]) == (pushed, survivor.pid, 2)
    assert end["at"] - killed > 1, "it was begun again before its lease had ended"
    site.wait_until_over(pushed)
    survivor.stop()


def test_a_task_without_retry_is_not_begun_again_when_its_process_is_killed(site: Site) -> None:
    victim: Instance = site.process().wait_until_up()
    pushed = site.scheduler().push("first attempt hangs")
    site.wait_for(lambda: site.lines("begin"))
    victim.kill()
    survivor = site.process().wait_until_up()
    site.wait_until_over(pushed)
    row = site.opened().queue.get(pushed)
    assert row is not None and row.status == "failed"
    assert len(site.lines("begin")) == 1
    survivor.stop()


def test_hosts_whose_clocks_are_wrong_fire_when_the_store_says_so(redis_site: Site, lab: Lab) -> None:
    """One clock is ten minutes ahead, another ten minutes behind.

    No occurrence is early, skipped or doubled; delays are right.
    """
    site = redis_site
    registration = {"name": "work", "cron": EVERY_SECOND}
    ahead, behind = lab.wall_clock(), lab.wall_clock()
    ahead.set(600)
    behind.set(-600)
    with Launcher(ahead.environment) as early, Launcher(behind.environment) as late:
        instances = [site.process(registration, launcher=launcher).wait_until_up() for launcher in (early, late)]
        pushed = site.scheduler().push("work once", delay=1.5)
        before = time.time()
        site.wait_for(lambda: len(begun(site, "work")) > 3)
        site.wait_until_over(pushed)
        for instance in instances:
            instance.stop()
    fired = begun(site, "work")
    boot = time.time() - boottime()
    assert not gaps(fired) and max(fired.values()) == 1
    assert all(line["at"] + boot >= line["occurrence"] - 0.05 for line in site.lines("begin"))
    assert next(line["at"] + boot - before for line in site.lines("begin") if line["key"] == pushed) > 1.4


def test_a_handler_that_takes_longer_than_retry_timeout_is_not_doubled(site: Site) -> None:
    instances = [site.process().wait_until_up() for _ in range(2)]
    key = site.scheduler().push("work", data={"seconds": 4.5}, retry=True, retry_timeout=0.5)
    site.wait_until_over(key)
    assert len(site.lines("begin")) == 1
    for instance in instances:
        instance.stop()

"""Several processes with the same registrations, some of them killed; judged by their handlers' own records."""

from __future__ import annotations

import time
from collections import Counter

from faultlab.laboratory import Lab
from psched.clock import boottime
from tests.scheduler.site import Farm, Instance, Site

EVERY_SECOND = "*/1 * * * * *"
_KILLS = 4


def begun(open_section: Site, name: str) -> Counter[int]:
    """Return how often a handler began each occurrence of a registration."""
    return Counter(line["occurrence"] for line in open_section.lines("begin") if line["key"].startswith(f"{name}@"))


def cut_off(open_section: Site) -> set[int]:
    """Return the occurrences that a handler began and did not end."""
    ended = {(line["key"], line["pid"]) for line in open_section.lines("end")}
    return {line["occurrence"] for line in open_section.lines("begin") if (line["key"], line["pid"]) not in ended}


def gaps(occurrences: Counter[int]) -> set[int]:
    """Return the seconds between the first and the last occurrence that nobody began."""
    return set(range(min(occurrences), max(occurrences) + 1)) - occurrences.keys()


def test_each_occurrence_fires_once_while_processes_are_killed(file_and_server: Site) -> None:
    """With retry none is missed, and what a killed process had begun is begun again; without it, it is not.

    A process that dies between two statements may have taken a task and not begun it: without retry it is lost.
    """
    open_section = file_and_server
    registrations = (
        {"name": "work", "cron": EVERY_SECOND, "retry": True, "retry_timeout": 1},
        {"name": "work once", "cron": EVERY_SECOND},
    )
    instances = [open_section.process(*registrations) for _ in range(4)]
    for instance in instances:
        instance.wait_until_up()
    for number in range(_KILLS):
        begin = boottime()
        open_section.wait_for(lambda begin=begin: boottime() > begin + 1.3)  # type: ignore[misc]
        instances[number].kill()
        instances[number] = open_section.process(*registrations)
    count = len(begun(open_section, "work"))
    open_section.wait_for(lambda: len(begun(open_section, "work")) > count + 3)
    for instance in instances:
        instance.wait_until_up().stop()
    again, once = begun(open_section, "work"), begun(open_section, "work once")
    assert len(again) > _KILLS
    assert not gaps(again)
    assert {occurrence for occurrence, number in again.items() if number > 1} <= cut_off(open_section)
    assert len(once) > _KILLS
    assert max(once.values()) == 1
    assert len(gaps(once)) <= _KILLS


def test_a_task_whose_process_is_killed_in_its_handler_is_begun_again_after_retry_timeout(
    file_and_server: Site,
) -> None:
    open_section = file_and_server
    first, second = (open_section.process().wait_until_up() for _ in range(2))
    pushed = open_section.scheduler().push("first attempt hangs", retry=True, retry_timeout=3)
    begin = open_section.wait_for(lambda: next(iter(open_section.lines("begin")), None))
    row = open_section.opened().queue.get(pushed)
    assert row is not None and row.due is not None and row.due - open_section.now() < 5, (
        "its lease is longer than it should be"
    )
    victim, survivor = (first, second) if begin["pid"] == first.pid else (second, first)
    victim.kill()
    killed = boottime()
    end = open_section.wait_for(lambda: next(iter(open_section.lines("end")), None))
    assert (end["key"], end["pid"], end["attempts"]) == (pushed, survivor.pid, 2)
    assert end["at"] - killed > 1, "it was begun again before its lease was over"
    open_section.wait_until_over(pushed)
    survivor.stop()


def test_a_task_without_retry_is_not_begun_again_when_its_process_is_killed(open_section: Site) -> None:
    victim: Instance = open_section.process().wait_until_up()
    pushed = open_section.scheduler().push("first attempt hangs")
    open_section.wait_for(lambda: open_section.lines("begin"))
    victim.kill()
    survivor = open_section.process().wait_until_up()
    open_section.wait_until_over(pushed)
    row = open_section.opened().queue.get(pushed)
    assert row is not None and row.status == "failed"
    assert len(open_section.lines("begin")) == 1
    survivor.stop()


def test_hosts_whose_clocks_are_wrong_fire_when_the_store_says_so(redis_site: Site, lab: Lab) -> None:
    """Ten minutes ahead, and behind: nothing is early, skipped or fired twice, and a delay is what it should be."""
    open_section = redis_site
    registration = {"name": "work", "cron": EVERY_SECOND}
    ahead, behind = lab.wall_clock(), lab.wall_clock()
    ahead.set(600)
    behind.set(-600)
    with Farm(ahead.environment) as early, Farm(behind.environment) as late:
        instances = [open_section.process(registration, farm=farm).wait_until_up() for farm in (early, late)]
        pushed = open_section.scheduler().push("work once", delay=1.5)
        before = time.time()
        open_section.wait_for(lambda: len(begun(open_section, "work")) > 3)
        open_section.wait_until_over(pushed)
        for instance in instances:
            instance.stop()
    fired = begun(open_section, "work")
    boot = time.time() - boottime()
    assert not gaps(fired) and max(fired.values()) == 1
    assert all(line["at"] + boot >= line["occurrence"] - 0.05 for line in open_section.lines("begin"))
    assert next(line["at"] + boot - before for line in open_section.lines("begin") if line["key"] == pushed) > 1.4


def test_a_handler_that_takes_longer_than_retry_timeout_is_not_doubled(open_section: Site) -> None:
    instances = [open_section.process().wait_until_up() for _ in range(2)]
    key = open_section.scheduler().push("work", data={"seconds": 4.5}, retry=True, retry_timeout=0.5)
    open_section.wait_until_over(key)
    assert len(open_section.lines("begin")) == 1
    for instance in instances:
        instance.stop()

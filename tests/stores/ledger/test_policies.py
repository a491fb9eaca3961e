"""Options, pauses and extra runs on each database, and the audit of all occurrences."""

from __future__ import annotations

import logging
import re
import time

import pytest

from psched.model import LeaseTimes, Policy
from psched.schedules.collection import Defaults, ScheduleCollection
from psched.store import ScheduleStore
from psched.task import Task


def run(schedules: ScheduleCollection) -> Task:
    task = schedules.poll()
    assert task is not None
    task.finish()
    return task


def test_a_schedule_s_whole_life_is_proved(store: ScheduleStore) -> None:
    now = int(store.now())
    schedules = ScheduleCollection(store, LeaseTimes(300, 300, 300), Defaults("UTC"))
    schedules.add("key", "t", cron="* * * * *", next_time=now - 600, catch_up="latest", alert_after=9)
    task = schedules.poll()
    assert task is not None
    schedules["key"].pause()
    task.retry(0, error="it broke")
    assert schedules.poll() is None
    schedules["key"].run_now()
    again = run(schedules)
    assert (again.scheduled_time, again.attempts) == (task.scheduled_time, 2)
    schedules["key"].modify(cron="0 0 1 1 *", max_lateness=5)
    schedules["key"].modify(next_time=now + 3600)
    schedules["key"].resume()
    schedules["key"].run_now()
    run(schedules)
    schedules["key"].delete()
    found = [(row.outcome, row.detail, row.attempts) for row in schedules.history("key")]
    assert found == [("skipped", "superseded", 1), ("finished", "run-now", 2), ("finished", "run-now", 1)]
    [verdict] = schedules.audit(now - 600, now + 60, keys=["key"])
    assert (verdict.violations, verdict.ran) == ([], 2)


@pytest.mark.parametrize(
    ("cron", "words"),
    [("%M %H * * *", r"the occurrence of \S+ \S+"), ("* * * * *", r"\d+ occurrences from \S+ \S+ on")],
)
def test_the_log_names_the_skipped_occurrences(
    store: ScheduleStore, caplog: pytest.LogCaptureFixture, cron: str, words: str
) -> None:
    begin = int(store.now()) // 60 * 60 - 600
    schedules = ScheduleCollection(store, LeaseTimes(300, 300, 300), Defaults("UTC"))
    expression = time.strftime(cron, time.gmtime(begin))
    schedules.add("key", "t", cron=expression, next_time=begin, max_lateness=60)
    with caplog.at_level(logging.INFO):
        schedules.poll()
    assert re.search(f"key=key skipped {words}: ", caplog.text)


def test_what_a_schedule_is_for_is_versioned_with_it(store: ScheduleStore) -> None:
    schedules = ScheduleCollection(store, LeaseTimes(300, 300, 300), Defaults("UTC"))
    schedules.add("key", "t", cron="* * * * *", next_time=0, owner="billing", tags=["nightly", "mail", "mail"])
    assert store.acquire(1, 100)[0].row.policy == Policy(owner="billing", tags=("nightly", "mail"))
    schedules["key"].modify(owner=None, description="Sends it.", tags=None)
    assert schedules["key"].metadata().policy == Policy(description="Sends it.")
    added, modified = schedules.ledger.changes("key")
    assert added.policy == Policy(owner="billing", tags=("nightly", "mail"))
    assert modified.policy == Policy(description="Sends it.")
    with pytest.raises(ValueError, match="owner must be non-empty text, got ''"):
        schedules["key"].modify(owner="")
    with pytest.raises(ValueError, match="tags must be a list of texts"):
        schedules.add("other", "t", cron="* * * * *", tags="mail")


def test_pauses_follow_each_other(store: ScheduleStore) -> None:
    schedules = ScheduleCollection(store, LeaseTimes(300, 300, 300), Defaults("UTC"))
    schedules.add("key", "t", cron="* * * * * *", next_time=int(store.now()) + 1)
    for _ in range(2):
        schedules["key"].pause()
        assert schedules["key"].metadata().paused
        schedules["key"].resume()
        assert not schedules["key"].metadata().paused
    assert store.ledger is not None
    actions = [change.action for change in store.ledger.changes("key")]
    assert actions == ["add", "pause", "resume", "pause", "resume"]

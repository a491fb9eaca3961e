"""What happens to rows that cannot be run, if the database refuses to retry them by one call."""

from __future__ import annotations

from typing import Any, cast

import pytest

from psched.acquisition.unrunnable_rows import RunnableFilter
from psched.model import Claim, Lease, LeaseTimes, Rule, ScheduleRow


class Refusing:
    """A store whose `retry_many` fails, and a settlement that lets each row be tried for ever."""

    def __init__(self, away: bool) -> None:
        self.away = away
        self.alone: list[str] = []

    def retry_many(self, retries: object, until: float) -> Any:
        raise OSError("no answer")

    def is_unavailable(self, error: Exception) -> bool:
        return self.away

    def attempts_allowed(self, row: object, most: object) -> None:
        return None

    def retry(self, lease: Lease, *given: object) -> None:
        self.alone.append(lease.key)


def claim(key: str) -> Claim:
    rule = Rule("@daily", "UTC", 0)
    row = ScheduleRow(
        key, "t", {}, "running", 1, None, None, "bad cron", rule=rule, next_time=0, next_run_time=0, settled=False
    )
    return Claim(row, Lease(key, 1, 100.0))


@pytest.mark.parametrize("away", [False, True])
def test_a_database_that_is_away_is_not_asked_for_each_row(away: bool) -> None:
    store = Refusing(away)
    sieve = RunnableFilter(cast("Any", store), cast("Any", store), LeaseTimes(300, 5.0), lambda: 0.0)
    assert sieve.split_runnable([claim("a"), claim("b")]) == []
    assert store.alone == ([] if away else ["a", "b"])


def test_what_was_told_of_is_not_remembered_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    store = Refusing(away=True)
    sieve = RunnableFilter(cast("Any", store), cast("Any", store), LeaseTimes(300, 5.0), lambda: 0.0)
    seen = [claim(str(number)) for number in range(12_000)]
    sieve.split_runnable(seen)
    sieve.split_runnable(seen[-1:])
    told = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(told) == len(seen), "the last ones are told of once"
    assert len(sieve._reported) < 11_000

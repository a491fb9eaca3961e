"""Schedules that another program has made invalid: one invalid column affects only its own schedule."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

import pytest

from psched.acquisition.task_source import TaskSource
from psched.model import LeaseTimes, Rule
from psched.schedules.settlement import ScheduleSettlement
from psched.task import finish_many
from tests.stores.bench import LONG_AGO, Bench, new_row, soon
from tests.stores.databases import DATABASES
from tests.stores.invalid_values import SCHEDULE_COLUMNS, invalid_values

OURS = [*(("rdb", database) for database in DATABASES), ("redis", "redis")]


@pytest.mark.unchecked
@pytest.mark.parametrize("bare", OURS, indirect=True, ids="-".join)
@pytest.mark.parametrize("columns", SCHEDULE_COLUMNS, ids=itemgetter(0))
def test_a_spoilt_column_stops_no_other_schedule(bench: Bench, columns: Sequence[str]) -> None:
    store = bench.open()
    values = invalid_values(bench, columns)
    bad = [key for key, _, _ in values]
    assert store.add_many([new_row(key, {"n": 1}, rule=Rule("0 0 1 1 *", "UTC")) for key in bad]) == []
    bench.rows.spoil(values)
    bench.add(store, "good", due=LONG_AGO + 100, rule=Rule("0 0 1 1 *", "UTC"))
    assert store.next_due() == 0.0
    assert "good" in {row.key for row in store.list()}
    source = TaskSource(store, ScheduleSettlement(store, "vixie"), LeaseTimes(60, 300, 15))
    run = set[str]()
    for _ in range(100):
        tasks = source.poll_multi(50)
        if not tasks:
            break
        run |= {task.key for task in tasks}
        refused = finish_many(tasks, soon())
        errors = {task.key: refused.get(task) for task in tasks}
        assert errors.get("good") is None
    assert "good" in run
    assert store.ledger is not None
    store.next_due()
    store.due_by_type()
    list(store.diagnose())
    assert "good" in {row.key for row in store.list()}
    for key in bad[::5]:  # the others have been listed
        store.get(key)

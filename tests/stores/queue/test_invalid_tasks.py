"""Tasks that another program has made invalid: one invalid column affects only its own task."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import sqlalchemy as sa

from psched.acquisition.task_source import TaskSource
from psched.model import LeaseTimes, TaskFilter
from psched.queue.settlement import TaskSettlement
from psched.task import finish_many
from tests.stores.bench import FAR_OFF, LONG_AGO, soon
from tests.stores.databases import DATABASES
from tests.stores.invalid_values import QUEUE_COLUMNS, invalid_values
from tests.stores.queue.bench import QueueBench, keys_in, row_of

GOOD = {"good", "of a user"}


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("ours", "columns"),
    QUEUE_COLUMNS,
    indirect=["ours"],
    ids=[f"{database}-{columns[0]}" for database, columns in QUEUE_COLUMNS],
)
def test_a_spoilt_column_stops_no_other_task(ours: QueueBench, columns: Sequence[str]) -> None:
    bench, store = ours, ours.queue()
    bad = []
    for user in (None, "one"):
        values = invalid_values(bench, columns, f" of {user}")
        keys = [key for key, _, _ in values]
        bench.submit(store, keys, user=user)
        bench.rows.spoil(values)
        bad += keys
    bench.submit(store, ["good"], run_at=LONG_AGO + 100)
    bench.submit(store, ["of a user"], run_at=LONG_AGO + 101, user="one")
    assert store.next_due() == 0.0
    assert set(keys_in(store)) >= GOOD
    source = TaskSource(store, TaskSettlement(store, 100, max_attempts=None), LeaseTimes(60, 300, 15))
    run = set[str]()
    while tasks := source.poll_multi(50):
        run |= {task.key for task in tasks}
        refused = finish_many(tasks, soon())
        errors = {task.key: refused.get(task) for task in tasks}
        assert [errors.get(key) for key in GOOD] == [None, None]
    assert run >= GOOD
    assert {row.key for row in store.list(TaskFilter()) if row.status == "finished"} >= GOOD
    for key in bad[::5]:  # the others have been listed
        store.get(key)
    assert row_of(store, "good").status == "finished"
    store.next_due()
    store.due_by_type()
    list(store.diagnose())
    store.purge(500)


@pytest.mark.parametrize("ours", DATABASES, indirect=True)
def test_a_task_that_can_never_be_due_is_kept_out_and_told(ours: QueueBench) -> None:
    bench, store = ours, ours.queue()
    bench.submit(store, ["bad", "late", "good"])
    messages = [finding.message for finding in store.diagnose() if finding.subject == "rows"]
    assert messages == ["no row has an invalid due time or priority"]
    columns = ["due = NULL", "band = NULL", "band = 1000", "status = 'finished'", "purge_at = 1", "max_running = 0"]
    for assignment in [*columns, *(["key = X'00'", "key = ''"] if bench.database == "sqlite" else [])]:
        with pytest.raises(sa.exc.DBAPIError):
            bench.execute(f"UPDATE {{table}} SET {assignment} WHERE {bench.quoted_key} = 'bad'")
    dues = {"bad": "NULL", "late": str(10**18), "good": str(FAR_OFF * 1000)}
    assert bench.rows.spoil((key, "due", due) for key, due in dues.items()) == 3
    wait = store.next_due()
    assert wait is not None
    assert wait > 0
    [told] = [finding for finding in store.diagnose() if finding.subject == "rows"]
    assert not told.ok
    assert "'bad', 'late';" in told.text

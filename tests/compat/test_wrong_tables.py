"""Tables of the originals that do not fit their configuration: the error says what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from psched.errors import ConfigError
from tests.compat.original_queue import OriginalQueue
from tests.compat.original_schedules import Original
from tests.compat.test_queue_rows import Shared, shared
from tests.stores.bench import Bench
from tests.stores.databases import SharedDatabases
from tests.stores.queue.bench import QueueBench
from tests.stores.queue.conftest import open_bench

__all__ = ["shared"]


def test_a_queue_that_is_configured_for_schedules_is_an_error_that_names_its_section(bench: Bench) -> None:
    OriginalQueue(bench).make_table()
    store = bench.open()
    for use in (store.check_tables, store.create_tables):
        with pytest.raises(ConfigError, match=r"belongs to PerfectQueue.*`queue:`, or use `psched queue …`"):
            use()
    [table] = store.diagnose()
    assert (table.subject, table.ok) == ("table", False)


def test_schedules_that_are_configured_for_a_queue_are_an_error_that_names_their_section(
    bench: Bench, original: Original
) -> None:
    queue = QueueBench(bench.type, bench.url, bench.table).queue()
    with pytest.raises(ConfigError, match=r"belongs to PerfectSched.*`schedules:`, or use `psched …`"):
        queue.check_tables()
    queue.close()


@pytest.mark.parametrize("shared", ["sqlite", "mariadb"], indirect=True)
def test_the_remedy_for_a_table_of_an_older_perfectqueue_works(shared: Shared) -> None:
    shared.original.submit("key")
    shared.bench.execute("ALTER TABLE {table} DROP COLUMN owner")
    with pytest.raises(ConfigError, match="an older PerfectQueue") as caught:
        shared.store.check_tables()
    remedy = re.search("ALTER TABLE .*", str(caught.value))
    assert remedy is not None
    shared.bench.execute(remedy[0])
    shared.store.check_tables()
    shared.bench.claim(shared.store, "key")


def test_a_table_without_any_column_of_psched_is_refused_by_a_short_message(
    databases: SharedDatabases, tmp_path: Path
) -> None:
    bench = open_bench(databases, "rdb", "sqlite", tmp_path)
    bench.execute("CREATE TABLE {table} (a INT)")
    with pytest.raises(ConfigError, match=r"has no column (\w+, ){4}\w+ and \d+ more; configure another table"):
        bench.queue().check_tables()
    bench.close()


def test_a_table_of_another_program_is_not_taken_for_the_others(databases: SharedDatabases, tmp_path: Path) -> None:
    bench = open_bench(databases, "rdb_compat", "sqlite", tmp_path)
    bench.execute("CREATE TABLE {table} (id INT PRIMARY KEY, timeout INT)")
    with pytest.raises(ConfigError, match="PerfectQueue did not create the table"):
        bench.queue().check_tables()
    bench.close()

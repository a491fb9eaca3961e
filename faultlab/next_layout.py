"""A table layout that follows the present one. Only tests have it: they prove that tables can be upgraded.

The next layout adds columns, an index, and on Redis a field of each row. `python -m faultlab.next_layout init` is
`psched init` of a version with the next layout; the same holds for all other commands.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import sqlalchemy as sa

from psched.backends.common import layout_version
from psched.backends.rdb import lease_store as rdb_leases
from psched.backends.rdb import schedule_store as rdb_schedules
from psched.backends.rdb import task_store as rdb_queue
from psched.backends.rdb.node_registry import nodes_table
from psched.backends.rdb.schema import queue_table, schedules_table
from psched.backends.redis import script_composer
from psched.backends.redis import upgrades as redis_upgrades
from psched.backends.redis.script_composer import Script
from psched.backends.sql import open_database, upgrades
from psched.backends.sql.dialect import ExactText
from psched.backends.sql.schema_setup import RecordedSchema
from psched.store import StoreSettings

FIELDS_A_RUN = 20
"""The approximate number of rows that one call of the script on Redis changes."""

_ADD_FIELD = """
local prefix = KEYS[1]:sub(1, -5)
local at = redis.call('HGET', KEYS[1], 'noted') or '0'
local found = redis.call('ZSCAN', prefix .. 'due:', at, 'COUNT', {count})
for index = 1, #found[2], 2 do
  redis.call('HSETNX', prefix .. 'row:' .. found[2][index], 'note', '')
end
if found[1] == '0' then
  redis.call('HDEL', KEYS[1], 'noted')
  return 0
end
redis.call('HSET', KEYS[1], 'noted', found[1])
return 1
"""


def _note() -> sa.Column[Any]:
    return sa.Column("note", ExactText(64))


def _weight() -> sa.Column[Any]:
    return sa.Column("weight", sa.BigInteger, nullable=False, server_default="7")


def _further(make: Callable[..., sa.Table]) -> Callable[..., sa.Table]:
    """Return a function that makes a table with the columns and the index of the next layout."""

    def made(metadata: sa.MetaData, name: str, *options: Any) -> sa.Table:
        table = make(metadata, name, *options)
        table.append_column(_note())
        table.append_column(_weight())
        sa.Index(f"{table.name}_note", table.c.note, table.c.key)
        return table

    return made


@cache
def _further_nodes() -> sa.Table:
    table = nodes_table().to_metadata(sa.MetaData())
    table.append_column(_weight())
    return table


def _hashes() -> list[str]:
    """Return the schema hashes of the present layout."""
    found = []
    for url in ("sqlite://", "mysql://u@h/d"):
        settings = StoreSettings(url=url, holder="h")
        database = open_database(url, {}, 1, "auto", None, False, False)
        for store in (
            rdb_schedules.RdbScheduleStore(database, "s", settings),
            rdb_queue.RdbTaskStore(database, "q", settings),
        ):
            schema = store._layout
            assert isinstance(schema, RecordedSchema)
            found.append(schema.hash)
    return found


def install(patch: pytest.MonkeyPatch) -> None:
    """Give this process the next layout, for all stores that it opens from now on."""
    kinds = ("schedules", "queue")
    columns = [upgrades.NewColumn(kind, "", make) for kind in kinds for make in (_note, _weight)]
    columns.append(upgrades.NewColumn(upgrades.COMMON, "psched_nodes", _weight))
    statements = [
        upgrades.NewStatement(kind, database, "UPDATE {table} SET weight = 8 WHERE weight = 7")
        for kind in kinds
        for database in ("sqlite", "postgresql", "mysql")
    ]
    following = layout_version.LAYOUT + 1
    step = upgrades.SqlUpgradeStep(following, _hashes(), columns, statements)
    patch.setattr(upgrades, "STEPS", [*upgrades.STEPS, step])
    patch.setattr(rdb_schedules, "schedules_table", _further(schedules_table))
    patch.setattr(rdb_queue, "queue_table", _further(queue_table))
    patch.setattr(rdb_leases, "nodes_table", _further_nodes)
    _install_on_redis(patch, following)
    patch.setattr(layout_version, "LAYOUT", following)


def _install_on_redis(patch: pytest.MonkeyPatch, following: int) -> None:
    before = {kind: redis_upgrades.layout_text(kind) for kind in redis_upgrades.STATES}
    script = Script(_ADD_FIELD.format(count=FIELDS_A_RUN))
    step = redis_upgrades.RedisUpgradeStep(
        following, dict(redis_upgrades.STATES), dict.fromkeys(redis_upgrades.STATES, (script,))
    )
    patch.setattr(redis_upgrades, "STEPS", [*redis_upgrades.STEPS, step])
    patch.setattr(redis_upgrades, "STATES", dict.fromkeys(before, "1"))
    common = script_composer._FUNCTIONS["common"]
    for kind, text in before.items():
        assert common.count(f"{kind} = '{text}'") == 1
        common = common.replace(f"{kind} = '{text}'", f"{kind} = '{following}.1'")
    patch.setitem(script_composer._FUNCTIONS, "common", common)
    patch.setattr(script_composer, "compose", cache(script_composer.compose.__wrapped__))


if __name__ == "__main__":
    install(pytest.MonkeyPatch())
    from psched.cli.main import main

    sys.exit(main(sys.argv[1:]))

"""The hash of a schema: the same wherever it is computed, and another one after each change."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import BigInteger, CheckConstraint, Column, Computed, Index, Integer, MetaData, String, Table, text

from psched.backends.rdb.schema import queue_table, schedules_table, users_table
from psched.backends.sql.ledger import changes_table, ledger_table
from psched.backends.sql.schema_setup import schema_hash
from tests.programs import ROOT

_PROGRAM = """
from sqlalchemy import MetaData
from psched.backends.sql.schema_setup import schema_hash
from psched.backends.rdb.schema import *
from psched.backends.sql.ledger import changes_table, ledger_table
meta = MetaData()
print(schema_hash([schedules_table(meta, "s"), ledger_table(meta, "s"), changes_table(meta, "s")]))
print(schema_hash([queue_table(meta, "p", True), users_table(meta, "p")]))
print(schema_hash([queue_table(meta, "q", False), users_table(meta, "q")]))
"""


def test_it_is_the_same_in_every_process() -> None:
    meta = MetaData()
    here = [
        schema_hash([schedules_table(meta, "s"), ledger_table(meta, "s"), changes_table(meta, "s")]),
        schema_hash([queue_table(meta, "p", True), users_table(meta, "p")]),
        schema_hash([queue_table(meta, "q", False), users_table(meta, "q")]),
    ]
    assert len(set(here)) == 3
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, env=environment, check=True
        )
        assert done.stdout.split() == here


def table(*further: Any, **changes: Any) -> Table:
    """Return a small table. `changes` replace some of its parts."""
    parts = {
        "name": "t",
        "type": String(16),
        "nullable": True,
        "server_default": "a",
        "due": BigInteger(),
        "of_due": "CASE WHEN due > 0 THEN due END",
        "check": "due > 0",
        "indexed": ("due", "status"),
        "where": "due IS NOT NULL",
        "unique": False,
        "key": ("key",),
    } | changes
    made = Table(
        parts["name"],
        MetaData(),
        *(Column(name, Integer, primary_key=True) for name in parts["key"]),
        Column("status", parts["type"], nullable=parts["nullable"], server_default=parts["server_default"]),
        Column("due", parts["due"]),
        Column("of_due", BigInteger, Computed(parts["of_due"], persisted=True)),
        CheckConstraint(parts["check"], name="t_due"),
        *further,
    )
    where = {f"{database}_where": text(parts["where"]) for database in ("sqlite", "postgresql")}
    Index("t_due", *(made.c[name] for name in parts["indexed"]), unique=parts["unique"], **where)
    return made


CHANGES: list[Callable[[], Table]] = [
    lambda: table(type=String(17)),
    lambda: table(nullable=False),
    lambda: table(server_default="b"),
    lambda: table(server_default=None),
    lambda: table(due=Integer()),
    lambda: table(of_due="CASE WHEN due > 1 THEN due END"),
    lambda: table(check="due > 1"),
    lambda: table(indexed=("status", "due")),
    lambda: table(indexed=("due",)),
    lambda: table(where="due > 0"),
    lambda: table(unique=True),
    lambda: table(key=("key", "second")),
    lambda: table(Column("further", Integer)),
    lambda: table(CheckConstraint("status > ''", name="t_status")),
]


@pytest.mark.parametrize("changed", CHANGES)
def test_a_change_of_the_schema_changes_it(changed: Callable[[], Table]) -> None:
    assert schema_hash([table()]) == schema_hash([table()])
    assert schema_hash([changed()]) != schema_hash([table()])


def test_the_name_of_the_first_table_does_not_change_it() -> None:
    queues = [[queue_table(MetaData(), name, True), users_table(MetaData(), name)] for name in ("p", "key")]
    assert len({schema_hash(tables) for tables in queues}) == 1


def test_a_table_more_changes_it() -> None:
    assert schema_hash([table(), table(name="u")]) != schema_hash([table()])

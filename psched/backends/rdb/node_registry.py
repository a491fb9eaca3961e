"""The table `psched_nodes`: when each node was last seen, the types that it routes, and the tasks that it runs."""

from __future__ import annotations

import time
from dataclasses import asdict
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Integer,
    MetaData,
    Table,
    bindparam,
    delete,
    literal,
    select,
    update,
)

from psched.backends.sql.compiled_statements import cached_on_class
from psched.backends.sql.database import Database
from psched.backends.sql.dialect import MYSQL_OPTIONS, ExactText, LongText, now_ms
from psched.store.node_registry import ALIVE, FORGOTTEN, Announcement, Node, read_nodes

_TOLD = ("section", "types", "host", "pid", "version", "tz_database", "processes")
"""The columns that a node fills with its own values."""


@cache
def nodes_table() -> Table:
    """Return the table of nodes. All stores of a database share it.

    `seen` and `started` are unix milliseconds on the database's clock. `clock_offset`: the node's clock minus the
    database's clock, in milliseconds. `processes`: the node's processes and their runs, as JSON.
    """
    return Table(
        "psched_nodes",
        MetaData(),
        Column("node", ExactText(255), primary_key=True),
        Column("table_name", ExactText(64), primary_key=True),
        Column("section", ExactText(64), nullable=False),
        Column("types", LongText, nullable=False),
        Column("seen", BigInteger, nullable=False),
        Column("host", ExactText(255), nullable=False),
        Column("pid", Integer, nullable=False),
        Column("version", ExactText(64), nullable=False),
        Column("tz_database", ExactText(64), nullable=False),
        Column("started", BigInteger, nullable=False),
        Column("clock_offset", BigInteger, nullable=False),
        Column("processes", LongText, nullable=False),
        **MYSQL_OPTIONS,
    )


class RdbNodes:
    """Implements `Nodes` for one table of schedules or tasks."""

    def __init__(self, database: Database, table: str) -> None:
        self._database = database
        self._table_name = table
        self._nodes = nodes_table()
        self._write_statements(self._nodes)

    @cached_on_class
    def _write_statements(self, nodes: Table) -> None:
        c = nodes.c
        own = (c.node == bindparam("own_node"), c.table_name == bindparam("of_table"))
        told: dict[str, ColumnElement[Any]] = {name: bindparam(f"new_{name}") for name in _TOLD}
        times = {
            "seen": now_ms(),
            "started": now_ms() - bindparam("uptime", type_=BigInteger),
            "clock_offset": bindparam("node_time", type_=BigInteger) - now_ms(),
        }
        self._renew = update(nodes).where(*own).values(told | times)
        self._withdraw = delete(nodes).where(*own)
        self._forget = delete(nodes).where(c.seen < now_ms() - round(FORGOTTEN * 1000))
        since = now_ms() - bindparam("within", type_=BigInteger)
        columns = [column for column in c if column is not c.table_name]
        seen = select(*columns, now_ms().label("now")).where(c.table_name == bindparam("of_table"), c.seen >= since)
        self._seen = seen.order_by(c.node)

    def announce(self, announcement: Announcement) -> None:
        own, told = self._own(announcement.name), asdict(announcement)
        uptime = round(announcement.uptime * 1000)

        def work(connection: Connection, _: bool) -> None:
            node_time = round(time.time() * 1000)
            values = {f"new_{name}": told[name] for name in _TOLD} | {"uptime": uptime, "node_time": node_time}
            if connection.execute(self._renew, own | values).rowcount:
                return
            connection.execute(self._forget)
            row = {
                "node": announcement.name,
                "table_name": self._table_name,
                **{name: told[name] for name in _TOLD},
                "seen": now_ms(),
                "started": now_ms() - literal(uptime, BigInteger),
                "clock_offset": literal(node_time, BigInteger) - now_ms(),
            }
            self._database.dialect.insert_one(connection, self._nodes, row)

        self._database.run(work)

    def withdraw(self, name: str) -> None:
        self._database.change(self._withdraw, self._own(name))

    def alive(self) -> list[Node]:
        return self._seen_within(ALIVE)

    def known(self) -> list[Node]:
        return self._seen_within(FORGOTTEN)

    def _seen_within(self, seconds: float) -> list[Node]:
        values = {"of_table": self._table_name, "within": round(seconds * 1000)}
        return read_nodes(self._database.rows(self._seen, values))

    def _own(self, name: str) -> dict[str, str]:
        return {"own_node": name, "of_table": self._table_name}

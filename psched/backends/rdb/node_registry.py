"""The table `psched_nodes`: the workers that are alive, and the types that they run."""

from __future__ import annotations

from functools import cache

from sqlalchemy import BigInteger, Column, Connection, MetaData, Table, bindparam, delete, select, update

from psched.backends.sql.database import Database
from psched.backends.sql.dialect import MYSQL_OPTIONS, ExactText, LongText, now_ms
from psched.store.node_registry import ALIVE, Node, read_node

_FORGOTTEN = 86_400_000
"""Milliseconds after its last announcement when a node that did not withdraw is deleted."""


@cache
def nodes_table() -> Table:
    """Return the table of all nodes that use this database, the same for all stores; `seen` is in unix milliseconds."""
    return Table(
        "psched_nodes",
        MetaData(),
        Column("node", ExactText(255), primary_key=True),
        Column("table_name", ExactText(64), primary_key=True),
        Column("section", ExactText(64), nullable=False),
        Column("types", LongText, nullable=False),
        Column("seen", BigInteger, nullable=False),
        **MYSQL_OPTIONS,
    )


class RdbNodes:
    """Implements `Nodes` for one table of rows."""

    def __init__(self, database: Database, table: str) -> None:
        """`table`: the name of the table of the rows."""
        self._database = database
        self._table_name = table
        self._nodes = nodes = nodes_table()
        c = nodes.c
        own = (c.node == bindparam("own_node"), c.table_name == bindparam("of_table"))
        announced = {"section": bindparam("new_section"), "types": bindparam("new_types"), "seen": now_ms()}
        self._renew = update(nodes).where(*own).values(announced)
        self._withdraw = delete(nodes).where(*own)
        self._forget = delete(nodes).where(c.seen < now_ms() - _FORGOTTEN)
        of_table = c.table_name == bindparam("of_table")
        age = (now_ms() - c.seen).label("age")
        alive = select(c.node, c.section, c.types, age).where(of_table, c.seen >= now_ms() - round(ALIVE * 1000))
        self._alive = alive.order_by(c.node)

    def announce(self, name: str, section: str, types: str) -> None:
        values = {**self._own(name), "new_section": section, "new_types": types}

        def work(connection: Connection, _: bool) -> None:
            if connection.execute(self._renew, values).rowcount:
                return
            connection.execute(self._forget)
            row = {"node": name, "table_name": self._table_name, "section": section, "types": types, "seen": now_ms()}
            self._database.dialect.insert_one(connection, self._nodes, row)

        self._database.run(work)

    def withdraw(self, name: str) -> None:
        self._database.change(self._withdraw, self._own(name))

    def alive(self) -> list[Node]:
        rows = self._database.rows(self._alive, {"of_table": self._table_name})
        found = (read_node(row["node"], row["section"], row["types"], row["age"] / 1000) for row in rows)
        return [node for node in found if node is not None]

    def _own(self, name: str) -> dict[str, str]:
        return {"own_node": name, "of_table": self._table_name}

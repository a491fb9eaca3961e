"""The table of delivery watermarks. Each table of schedules or tasks has its own."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Connection, MetaData, String, Table, bindparam, delete, or_, select, update

from psched.backends.common.rows import milliseconds
from psched.backends.common.table_name_check import checked_name
from psched.backends.sql.compiled_statements import cached_on_class
from psched.backends.sql.database import Database
from psched.backends.sql.dialect import MYSQL_OPTIONS, ExactText, now_ms
from psched.store.delivery_watermarks import Watermark, WatermarkKind


def watermarks_table(metadata: MetaData, rows: str) -> Table:
    """Return the table of the watermarks. `position` and `since` are unix milliseconds."""
    return Table(
        f"{checked_name(rows)}_watermarks",
        metadata,
        Column("kind", String(16), primary_key=True),
        Column("name", ExactText(255), primary_key=True),
        Column("position", BigInteger, nullable=False),
        Column("detail", ExactText(300), nullable=False),
        Column("since", BigInteger, nullable=False),
        Column("claimer", ExactText(255), nullable=False, server_default=""),
        Column("claimed_until", BigInteger, nullable=False, server_default="0"),
        **MYSQL_OPTIONS,
    )


class RdbWatermarks:
    def __init__(self, database: Database, table: Table) -> None:
        self._database = database
        self._table = table
        self._write_statements(table)

    @cached_on_class
    def _write_statements(self, table: Table) -> None:
        c = table.c
        this = (c.kind == bindparam("of_kind"), c.name == bindparam("of_name"))
        unmoved = (*this, c.position == bindparam("of_position"))
        self._raise = update(table).where(*this, c.position < bindparam("of_position"))
        self._raise = self._raise.values(position=bindparam("of_position"), detail=bindparam("of_detail"))
        later = (c.kind == bindparam("of_kind"), c.name > bindparam("after"))
        self._page = select(*c).where(*later).order_by(c.name).limit(bindparam("limit"))
        until = now_ms() + bindparam("span", type_=BigInteger)
        is_free = or_(c.claimed_until <= now_ms(), c.claimer == bindparam("by_claimer"))
        self._claim = update(table).where(*unmoved, is_free)
        self._claim = self._claim.values(claimer=bindparam("by_claimer"), claimed_until=until)
        self._remove = delete(table).where(*unmoved)

    def raise_to(self, kind: WatermarkKind, name: str, position: float, detail: str = "") -> None:
        place = milliseconds(position)
        values = {"of_kind": kind, "of_name": name, "of_position": place, "of_detail": detail}
        row = {"kind": kind, "name": name, "position": place, "detail": detail, "since": now_ms()}

        def work(connection: Connection, _: bool) -> None:
            is_raised = connection.execute(self._raise, values).rowcount > 0
            if not is_raised and not self._database.dialect.insert_one(connection, self._table, row):
                connection.execute(self._raise, values)  # another node may just have made the mark, at a lower position

        self._database.run(work)

    def page(self, kind: WatermarkKind, after: str, limit: int) -> list[Watermark]:
        rows = self._database.rows(self._page, {"of_kind": kind, "after": after, "limit": limit})
        return [
            Watermark(kind, row["name"], row["position"] / 1000, row["detail"], row["since"] / 1000) for row in rows
        ]

    def claim(self, mark: Watermark, claimer: str, seconds: float) -> bool:
        values = {**_this(mark), "by_claimer": claimer, "span": milliseconds(seconds)}
        return self._database.change(self._claim, values) == 1

    def remove(self, mark: Watermark) -> None:
        self._database.change(self._remove, _this(mark))


def _this(mark: Watermark) -> dict[str, Any]:
    return {"of_kind": mark.kind, "of_name": mark.name, "of_position": milliseconds(mark.position)}

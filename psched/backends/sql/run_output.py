"""The outputs of the last runs of each schedule on SQL databases, in a table beside the ledger."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from psched.backends.common.rows import milliseconds, read_output, stored_text
from psched.backends.common.table_name_check import checked_name
from psched.backends.sql.compiled_statements import cached_on_class
from psched.backends.sql.database import Database
from psched.backends.sql.dialect import MYSQL_OPTIONS, ExactText, LongText, now_ms
from psched.model import Claim
from psched.store.ledger import KEPT_OUTPUTS, KeptOutput, Output

_ALL = 2**62
"""A number larger than any time."""
_RUNS = 2**62
"""A fence of `rdb_compat` is too large for a column. So the column `run` holds the remainder of the run's fence after
division by this number."""


def output_table(metadata: sa.MetaData, schedules: str) -> sa.Table:
    """Return the table of outputs. `run`: made from the fence; see `_RUNS`. `purge_at`: when the output is deleted."""
    table = sa.Table(
        f"{checked_name(schedules)}_output",
        metadata,
        sa.Column("key", ExactText(255), primary_key=True),
        sa.Column("run", sa.BigInteger, primary_key=True),
        sa.Column("scheduled_time", sa.BigInteger, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("failed", sa.Integer, nullable=False),
        sa.Column("result", LongText, nullable=False),
        sa.Column("output", LongText, nullable=False),
        sa.Column("ended", sa.BigInteger, nullable=False),
        sa.Column("purge_at", sa.BigInteger, nullable=False),
        **MYSQL_OPTIONS,
    )
    sa.Index(f"{table.name}_purge", table.c.purge_at)
    return table


class SqlRunOutput:
    def __init__(self, database: Database, table: sa.Table) -> None:
        self._database = database
        self._write_statements(table)

    def keep(self, claim: Claim, output: Output, retention: float) -> None:
        row, run = claim.row, claim.lease.fence % _RUNS
        values: dict[str, Any] = {
            "key": row.key,
            "run": run,
            "scheduled_time": milliseconds(row.scheduled_time),
            "attempt": max(row.attempts, 1),
            "failed": int(output.failed),
            "result": stored_text(output.result),
            "output": stored_text(output.text),
            "retention": milliseconds(retention),
        }
        this = {"of_key": row.key, "of_run": run}

        def work(connection: sa.Connection, uncertain: bool) -> None:
            with self._database.transaction(connection):
                connection.execute(self._delete, this)
                connection.execute(self._insert, values)
                surplus = connection.execute(self._surplus, {"of_key": row.key}).first()
                if surplus is not None:
                    last = {"of_key": row.key, "end": surplus.ended, "of_run": surplus.run}
                    connection.execute(self._delete_first, last)

        self._database.run(work)

    def of_key(self, key: str) -> list[KeptOutput]:
        return [read_output(row) for row in self._database.rows(self._of_key, {"of_key": key})]

    def purge(self, connection: sa.Connection, limit: int) -> int:
        """Delete about `limit` outputs whose retention is over, and return their number."""
        end = connection.execute(self._nth_old, {"skipped": limit - 1}).scalar()
        done: int = connection.execute(self._purge, {"end": _ALL if end is None else end}).rowcount
        return done

    @cached_on_class
    def _write_statements(self, table: sa.Table) -> None:
        c = table.c
        purge_at = now_ms() + sa.bindparam("retention", type_=sa.BigInteger)
        self._insert = sa.insert(table).values(ended=now_ms(), purge_at=purge_at)
        of_key, end = c.key == sa.bindparam("of_key"), sa.bindparam("end", type_=sa.BigInteger)
        of_run = sa.bindparam("of_run", type_=sa.BigInteger)
        self._of_key = sa.select(*c).where(of_key).order_by(c.ended, c.run)
        latest_first = (c.ended.desc(), c.run.desc())
        self._surplus = sa.select(c.ended, c.run).where(of_key).order_by(*latest_first).limit(1).offset(KEPT_OUTPUTS)
        self._delete = sa.delete(table).where(of_key, c.run == of_run)
        ended_with_it = sa.and_(c.ended == end, c.run <= of_run)
        self._delete_first = sa.delete(table).where(of_key, sa.or_(c.ended < end, ended_with_it))
        old = c.purge_at <= now_ms()
        self._nth_old = sa.select(c.purge_at).where(old).order_by(c.purge_at).limit(1).offset(sa.bindparam("skipped"))
        self._purge = sa.delete(table).where(old, c.purge_at <= end)

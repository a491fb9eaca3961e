"""Advancing many schedules in one transaction, with what is entered of them. Used in children and clients.

All or none: unless every lease and every rule is as it was, nothing is written, and each is advanced by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from sqlalchemy import BigInteger, Connection, FromClause, Table, case

from psched.backends.rdb.leases import Leases
from psched.backends.rdb.records import Records
from psched.backends.rdb.schedule_rows import rule_columns
from psched.backends.rdb.statements import GIVEN_LEASE, LeaseStatements
from psched.backends.rdb.tables import milliseconds
from psched.dialects.base import ExactText, LongText
from psched.dialects.database import Database
from psched.dialects.given import PREFIX, Compiled, given
from psched.dialects.insertion import as_parameter
from psched.dialects.once import once
from psched.ledger import Step
from psched.model import ScheduleRow

_TEXT, _LONG, _NUMBER = ExactText(255), LongText(), BigInteger()


_GIVEN = {
    **GIVEN_LEASE,
    **dict.fromkeys(("cron", "timezone", "outcome", "reckoning"), _TEXT),
    **dict.fromkeys(("detail", "error"), _LONG),
    **dict.fromkeys(("delay_ms", "following", "following_due", "settled", "scheduled_time", "last_time"), _NUMBER),
    **dict.fromkeys(("occurrences", "previous", "attempts", "trouble", "started"), _NUMBER),
}
"""What is known of an occurrence before it is settled."""


class Advancing:
    """The two statements on one table and its ledger."""

    def __init__(self, database: Database, table: Table, leases: Leases, records: Records) -> None:
        self._database = database
        self._records = records
        self._write_statements(table, leases.statements, records)

    @once
    def _write_statements(self, table: Table, statements: LeaseStatements, records: Records) -> None:
        rows = given("steps", _GIVEN)
        self._advance = _advancing(table, statements, rows)
        self._enter = records.entering_given(rows)

    def advance(self, steps: Sequence[Step], until: float) -> tuple[bool, bool]:
        """Advance all of them in one transaction, or change nothing when some are not as they were.

        Returns whether they were advanced, and whether they may have been by an attempt whose answer was lost.
        """
        values = {"steps": as_parameter([self._row(step) for step in steps])}

        def work(connection: Connection, uncertain: bool) -> tuple[bool, bool]:
            done = self._database.execute_all(connection, len(steps), self._advance, self._enter, values)
            return done, uncertain

        return self._database.run(work, until)

    def _row(self, step: Step) -> dict[str, Any]:
        row = cast("ScheduleRow", step.claim.row)
        known = {
            **rule_columns(row.rule),
            **self._records.values(row, step.entry),
            "key": row.key,
            "fence": step.claim.lease.fence,
            "following": milliseconds(step.next_time),
            "following_due": milliseconds(step.next_run_time),
            "settled": milliseconds(row.next_time if step.entry.last is None else step.entry.last),
        }
        return {f"{PREFIX}{name}": value for name, value in known.items() if value is not None}


def _advancing(table: Table, statements: LeaseStatements, rows: FromClause) -> Compiled:
    c, g = table.c, rows.c
    paused = c.paused_from.is_not(None) & c.paused_until.is_(None)
    return statements.settling_given(
        rows,
        *(c[name] == g[f"{PREFIX}{name}"] for name in ("cron", "timezone", "delay_ms")),
        next_time=g.given_following,
        due=g.given_following_due,
        last_time=g.given_settled,
        alert_at=case((paused, None), else_=g.given_following + c.delay_ms + c.alert_after_ms),
        attempts=0,
        crashes=0,
        last_error=None,
    )

"""Advancing many schedules in one transaction, with what is entered of them. Used in children and clients.

All or none: unless every lease and every definition is as it was, nothing is written, and each is advanced by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from sqlalchemy import BigInteger, Table, Update, case, null

from psched.backends.lease_endings import FINISHED
from psched.backends.rdb.leases import Leases
from psched.backends.rdb.records import Records
from psched.backends.rdb.schedule_rows import DEFINITION, definition_columns, settled_time
from psched.backends.rdb.statements import GIVEN_LEASE, LeaseStatements, constant
from psched.backends.rdb.tables import milliseconds
from psched.dialects.base import ExactText, LongText
from psched.dialects.database import Database
from psched.dialects.given import Given, Told
from psched.dialects.once import once
from psched.dialects.pairs import Executing
from psched.ledger import Step
from psched.model import ScheduleRow

_TEXT, _LONG, _NUMBER = ExactText(255), LongText(), BigInteger()


_SEEN = {"cron": _TEXT, "timezone": _TEXT, "delay_ms": _NUMBER, "version": _NUMBER}
_STEP = {**GIVEN_LEASE, **_SEEN, **dict.fromkeys(("following", "following_due", "settled"), _NUMBER)}
"""What is told of a schedule's way on: of the definition it is computed from, that it must still be this one."""

_ENTRY = {
    "key": _TEXT,
    **dict.fromkeys(("outcome", "reckoning"), _TEXT),
    **dict.fromkeys(("detail", "error"), _LONG),
    **dict.fromkeys(
        ("scheduled_time", "last_time", "occurrences", "extra", "previous", "attempts", "trouble", "started"), _NUMBER
    ),
}
"""What is known of an occurrence before it is settled."""


class Advancing:
    """The two statements on one table and its ledger."""

    def __init__(self, database: Database, table: Table, leases: Leases, records: Records, holder: str) -> None:
        self._database = database
        self._holder = holder
        self._records = records
        self._write_statements(table, leases.statements, records)

    @once
    def _write_statements(self, table: Table, statements: LeaseStatements, records: Records) -> None:
        self._advance = Given(_STEP, partial(_advancing, table, statements))
        self._enter = Given(_ENTRY, records.entering_given)

    def prepare(self, connection: Executing) -> None:
        """Compile both statements."""
        self._advance.prepare(connection)
        self._enter.prepare(connection)

    def advance(self, steps: Sequence[Step], until: float) -> tuple[bool, bool]:
        """Advance all of them in one transaction, or change nothing when some are not as they were.

        Returns whether they were advanced, and whether they may have been by an attempt whose answer was lost.
        """
        rows = [self._row(step) for step in steps]

        def work(connection: Executing, uncertain: bool) -> tuple[bool, bool]:
            advance = partial(self._advance.execute, connection, rows, {"lease_holder": self._holder})
            enter = partial(self._enter.execute, connection, rows, {})
            return self._database.execute_all(connection, len(steps), advance, enter), uncertain

        return self._database.run_direct(work, until)

    def _row(self, step: Step) -> dict[str, Any]:
        row = cast("ScheduleRow", step.claim.row)
        return {
            **definition_columns(row),
            **self._records.values(row, step.entry),
            "key": row.key,
            "fence": step.claim.lease.fence,
            "claim": step.claim.lease.claim,
            "following": milliseconds(step.next_time),
            "following_due": milliseconds(step.next_run_time),
            "settled": settled_time(row, step.entry),
        }


def _advancing(table: Table, statements: LeaseStatements, given: Told) -> Update:
    c = table.c
    paused = c.paused_from.is_not(None) & c.paused_until.is_(None)
    return statements.settling_given(
        given,
        FINISHED,
        *(c[name] == given[name] for name in DEFINITION),
        next_time=given["following"],
        due=given["following_due"],
        last_time=given["settled"],
        alert_at=case((paused, None), else_=given["following"] + c.delay_ms + c.alert_after_ms),
        regular_time=null(),
        regular_due=null(),
        attempts=constant(0),
        crashes=constant(0),
        last_error=null(),
    )

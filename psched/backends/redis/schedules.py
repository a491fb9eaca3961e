"""Schedules on Redis: created by `add`, finished by `advance`. Used in children and clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from psched.alarm import Alarms
from psched.backends.redis.fields import common, milliseconds, stored
from psched.backends.redis.handover import Handover
from psched.backends.redis.layout import Table
from psched.backends.redis.server import Argument, RedisServer
from psched.backends.redis.store import RedisLeaseStore, new_number
from psched.backends.sql.fields import Fields
from psched.errors import AlreadyExistsError
from psched.ledger import MODIFY, Entry, Ledger
from psched.model import Claim, Policy, Rule, ScheduleRow
from psched.payload import encode, type_from_key
from psched.store import Also

_ALL = Policy()
_RUN = Entry()
_PAGE = 500
"""Rows read at once."""
_RUNNING = "running"
_WAITING = "waiting"


class RedisScheduleStore(RedisLeaseStore):
    """`ScheduleStore` on a table of Redis, without a ledger."""

    ledger: Ledger | None = None
    alarms: Alarms | None = None

    def __init__(self, server: RedisServer, table: str, holder: str) -> None:
        """Connects to nothing yet. Raises ConfigError for a name that cannot be a table's."""
        super().__init__(server, Table(server, table, "schedules"), holder, read_schedule)

    def add(
        self,
        key: str,
        type: str,
        rule: Rule,
        next_time: int,
        next_run_time: float,
        data: Mapping[str, Any],
        policy: Policy = _ALL,
    ) -> None:
        """Create a schedule; the table knows no policies. Raises AlreadyExistsError."""
        times = milliseconds(next_time), milliseconds(next_run_time)
        if not self._run("add", key, type, encode(dict(data)), *_words(rule), *times, new_number()):
            raise AlreadyExistsError(f"a schedule has the key {key!r} already")

    def get(self, key: str) -> ScheduleRow | None:
        """Return the schedule, or None."""
        row = self._get(key)
        return None if row is None else read_schedule(row)

    def list(self) -> Iterator[ScheduleRow]:
        """Yield every schedule, ordered by due time and key, a page at a time."""
        after: tuple[Argument, Argument] = ("", "")
        while page := self._run("list", _PAGE, *after):
            rows = [stored(key, found) for key, found in page if found]
            yield from map(read_schedule, rows)
            if not rows:
                return  # a page of keys whose hashes somebody deleted
            after = rows[-1]["due"], rows[-1]["key"]

    def modify(self, seen: ScheduleRow, wanted: ScheduleRow, action: str = MODIFY, entry: Entry | None = None) -> bool:
        """Write what differs between `seen` and `wanted`; False when the row is not as it was seen."""
        changes = _changes(seen, wanted)
        if not changes:
            return True
        due: Argument = "" if seen.status == _RUNNING else milliseconds(seen.next_run_time)
        is_as = [seen.status, milliseconds(seen.next_time), *_words(seen.rule), due]
        given = [seen.key, *is_as, *(word for change in changes.items() for word in change)]

        def work(uncertain: bool) -> bool:
            if self._call("modify", *given) == 1:
                return True
            row = self._get(seen.key) if uncertain else None
            return row is not None and all(row[name] == value for name, value in changes.items())

        return self._server.run(work)

    def advance(
        self,
        claim: Claim,
        next_time: int,
        next_run_time: float,
        until: float,
        also: Also | None = None,
        entry: Entry = _RUN,
    ) -> Rule | None:
        """Finish the claimed occurrence; return the stored rule instead when it is not the claim's any more."""
        rule = cast("ScheduleRow", claim.row).rule
        given = [*_words(rule), milliseconds(next_time), milliseconds(next_run_time)]
        if also is None:
            answer = self._settle(claim.lease, "advance", given, until)
        else:
            handover = Handover(self._server)
            also(handover)
            answer = self._settle(claim.lease, "advance", given, until, handover if handover.tables else None)
        return None if answer is None else read_schedule(stored(claim.row.key, answer[1])).rule


def read_schedule(row: Mapping[str, Any]) -> ScheduleRow:
    """Return a stored schedule; what cannot be used of it is its `problem`."""
    fields = Fields(row)
    key = fields.text("key")
    shared = common(fields)
    return ScheduleRow(
        key=key,
        type=fields.text("type") or type_from_key(key),
        rule=Rule(fields.text("cron"), fields.text("timezone"), fields.seconds("delay_ms", 1000)),
        next_time=int(fields.seconds("next_time", 1000)),
        next_run_time=fields.seconds("due", 1000),
        settled=shared["status"] == _WAITING and shared["attempts"] == 0,
        **shared,
        problem=fields.problem,
    )


def _words(rule: Rule) -> Sequence[Argument]:
    return rule.cron, rule.timezone, milliseconds(rule.delay)


def _changes(seen: ScheduleRow, wanted: ScheduleRow) -> dict[str, Argument]:
    """Return the fields to be written, by name."""
    changes: dict[str, Argument] = {}
    if wanted.type != seen.type:
        changes["type"] = wanted.type
    if wanted.data != seen.data:
        changes["data"] = encode(wanted.data)
    if wanted.rule != seen.rule:
        changes |= zip(("cron", "timezone", "delay_ms"), _words(wanted.rule), strict=True)
    if wanted.next_time != seen.next_time:
        changes["next_time"] = milliseconds(wanted.next_time)
    if wanted.next_run_time != seen.next_run_time:
        changes["due"] = milliseconds(wanted.next_run_time)
    return changes

"""Builds histories of schedules for the audit, without a database: runs, changes and skips."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from psched.model import NO_OCCURRENCE, Policy, Rule, ScheduleRow
from psched.schedules import rule_occurrences
from psched.schedules.audit_result import Verdict
from psched.schedules.ledger_audit import GRACE, AuditRecords, AuditScope, audit, versions_at
from psched.schedules.pause_and_run_now import with_regular
from psched.schedules.rule_change import moved
from psched.store.ledger import ADD, DELETE, MODIFY, RUN_NOW, SKIPPED, Change, LedgerRow, runs_after

BEGIN = 1_600_000_000
NOW_DIALECT = "vixie 2026f"


@dataclass
class Past:
    """The past of one schedule up to `now`. Each method adds an event."""

    now: float = BEGIN
    rule: Rule = field(default_factory=lambda: Rule("*/5 * * * *", "Europe/Berlin", 2))
    row: ScheduleRow | None = None
    changes: list[Change] = field(default_factory=list)
    rows: list[LedgerRow] = field(default_factory=list)
    version: int = 0
    fence: int = 0
    policy: Policy = field(default_factory=lambda: Policy("all", 0.0))

    def add(self) -> None:
        first = rule_occurrences.first_time(self.rule, int(self.now) + 1, "vixie")
        row = ScheduleRow("key", "t", {}, "waiting", rule=self.rule, next_time=first, next_run_time=0)
        self.row = replace(row, next_run_time=row.run_time(first))
        self._change(ADD, None)

    def run(self, seconds: float = 1, late: float = 0.5, detail: str | None = None) -> None:
        """Run the next occurrence at its time, or now if that time has passed. Do nothing if the schedule has ended."""
        row = self.there
        if row.ended:
            return
        started = max(self.now, row.next_time + row.delay + late)
        self.now = started + seconds
        self.settle("finished", detail, started=started)

    def skip(self, count: int) -> None:
        """Skip the next `count` occurrences, or fewer if the schedule then ends."""
        row = self.there
        if row.ended:
            return
        *_, last = times = list(rule_occurrences.times(row.rule, row.next_time, count, "vixie")) or [row.next_time]
        if times[0] != row.next_time:  # an occurrence of the rule before, which was kept
            *_, last = times = [row.next_time, *times[: count - 1]]
        count = len(times)
        self.now = max(self.now, last + row.delay + 1)
        self.settle("skipped", "late", last, count)

    def catch_up(self) -> None:
        """Skip all due occurrences."""
        row = self.there
        due = rule_occurrences.count(row.rule, row.next_time, int(self.now - row.delay), "vixie")
        if row.next_time + row.delay <= self.now:
            self.skip(1 + due)

    def modify(self, rule: Rule) -> None:
        """Change the rule, as `Schedule.modify` does."""
        row = self.there
        runs = None if rule.max_runs is None else row.runs
        self.row = moved(replace(row, rule=rule, runs=runs), row.rule, self.now, "vixie")
        self._change(MODIFY, row.next_time)

    def move(self, time: int) -> None:
        """Change the time of the next occurrence, back or forth."""
        row = self.there
        time = NO_OCCURRENCE if row.has_run_enough else rule_occurrences.first_time(row.rule, time, "vixie")
        self.row = replace(row, next_time=time, next_run_time=row.run_time(time))
        self._change(MODIFY, row.next_time)

    def run_now(self) -> None:
        """Request an extra run, and run it. Do nothing if an occurrence is due."""
        row = self.there
        extra = int(self.now)
        if row.next_time > extra:
            self._change(RUN_NOW, row.next_time)
            self.row = replace(with_regular(row, row), next_time=extra, next_run_time=self.now, extra=extra)
            self.run(detail=RUN_NOW)
            self.row = row

    def change(self, action: str, pending: int | None = None) -> None:
        """Record a change with the present row.

        `pending`: the occurrence that was next before the change, if another one.
        """
        self._change(action, self.there.next_time if pending is None else pending)

    def delete(self) -> None:
        pending = self.there.next_time
        self._change(DELETE, pending)
        self.row = None

    def judged(self, since: int = 0, until: int = 2**31, late: float | None = None) -> Verdict:
        oldest = self.rows[0] if self.rows else None
        rows = sorted(self.rows, key=lambda row: (row.scheduled_time, row.fence))
        before = [
            row
            for version in versions_at(self.changes, since)
            for row in [row for row in rows if row.version == version and row.scheduled_time < since][-1:]
        ]
        before.sort(key=lambda row: (row.scheduled_time, row.fence))
        rows = before + [row for row in rows if since <= row.scheduled_time <= until]
        earlier = [row for row in self.rows if row.scheduled_time < since and not row.extra and row.outcome != SKIPPED]
        history = AuditRecords(
            "key",
            self.changes,
            iter(rows),
            oldest,
            self.row,
            self.now,
            reckoning=NOW_DIALECT,
            runs_before=Counter(row.version for row in earlier),
            earlier=[row for row in self.rows if row.scheduled_time < since],
        )
        return audit(history, AuditScope(since, until, late, GRACE if late is None else late))

    @property
    def there(self) -> ScheduleRow:
        """The schedule's row, which must exist."""
        assert self.row is not None
        return self.row

    def _change(self, action: str, pending: int | None) -> None:
        row = self.there
        self.version += 1
        self.changes.append(
            Change(
                key="key",
                version=self.version,
                at=self.now,
                action=action,
                node="n",
                type="t",
                rule=row.rule,
                policy=self.policy,
                pending=pending,
                first=row.next_time,
                due=row.next_run_time,
                reckoning=NOW_DIALECT,
            )
        )

    def settle(
        self,
        outcome: str,
        detail: str | None = None,
        last: int | None = None,
        count: int | None = 1,
        started: float | None = None,
        error: str | None = None,
    ) -> None:
        """Record that the next occurrence, or all occurrences up to `last`, have been settled now."""
        row = self.there
        self.fence += 1
        self.rows.append(
            LedgerRow(
                key="key",
                scheduled_time=row.next_time,
                fence=self.fence,
                version=self.version,
                outcome=outcome,
                detail=detail,
                last=last,
                count=count,
                extra=row.is_extra,
                previous=row.previous,
                attempts=1,
                error=error,
                node="n",
                started=started,
                ended=self.now,
                reckoning=NOW_DIALECT,
            )
        )
        end = row.next_time if last is None else last
        time = rule_occurrences.next_time(row.rule, end, "vixie")
        row = replace(row, runs=runs_after(row, self.rows[-1]), previous=end)
        if row.has_run_enough:
            time = NO_OCCURRENCE
        self.row = replace(row, next_time=time, next_run_time=row.run_time(time))

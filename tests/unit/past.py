"""A past for the audit to judge: schedules as they are run, changed and skipped, without a database."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from psched import cron
from psched.audit import History, Question, Verdict, audit, versions_at
from psched.ledger import ADD, DELETE, MODIFY, RUN_NOW, Change, LedgerRow
from psched.model import Policy, Rule, ScheduleRow
from psched.rules import first_match, moved

BEGIN = 1_600_000_000
NOW_DIALECT = "vixie 2026f"


@dataclass
class Past:
    """One schedule, `now` being the time it has come to. Each method is something that happened to it."""

    now: float = BEGIN
    rule: Rule = field(default_factory=lambda: Rule("*/5 * * * *", "Europe/Berlin", 2))
    row: ScheduleRow | None = None
    changes: list[Change] = field(default_factory=list)
    rows: list[LedgerRow] = field(default_factory=list)
    version: int = 0
    fence: int = 0

    def add(self) -> None:
        first = first_match(self.rule, int(self.now) + 1, "vixie")
        due = first + self.rule.delay
        self.row = ScheduleRow("key", "t", {}, "waiting", rule=self.rule, next_time=first, next_run_time=due)
        self._change(ADD, None)

    def run(self, seconds: float = 1, late: float = 0.5) -> None:
        """Run the next occurrence, as soon as it comes, or now when it is overdue."""
        row = self._there()
        started = max(self.now, row.next_time + row.rule.delay + late)
        self.now = started + seconds
        self._settle("finished", None, 1, started)

    def skip(self, count: int) -> None:
        """Skip so many occurrences that have come."""
        row = self._there()
        last = row.next_time
        for _ in range(count - 1):
            last = cron.next_time(row.rule.cron, last, row.rule.timezone)
        self.now = max(self.now, last + row.rule.delay + 1)
        self._settle("skipped", last, count, None)

    def modify(self, rule: Rule) -> None:
        """Change the rule, as `Schedule.modify` does."""
        row = self._there()
        self.row = moved(replace(row, rule=rule), row.rule, self.now, "vixie")
        self._change(MODIFY, row.next_time)

    def move(self, time: int) -> None:
        """Change the time of the next occurrence, back or forth."""
        row = self._there()
        time = first_match(row.rule, time, "vixie")
        self.row = replace(row, next_time=time, next_run_time=time + row.rule.delay)
        self._change(MODIFY, row.next_time)

    def run_now(self) -> None:
        """Have an extra run, unless one is due."""
        row = self._there()
        extra = int(self.now)
        if row.next_time > extra:
            self.row = replace(row, next_time=extra, next_run_time=self.now)
            self._change(RUN_NOW, row.next_time)
            self.run()

    def delete(self) -> None:
        pending = self._there().next_time
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
        rows = before + [row for row in rows if since <= row.scheduled_time <= until]
        history = History("key", self.changes, rows, oldest, self.row, self.now, reckoning=NOW_DIALECT)
        return audit(history, Question(since, until, late))

    def _there(self) -> ScheduleRow:
        assert self.row is not None
        return self.row

    def _change(self, action: str, pending: int | None) -> None:
        row = self._there()
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
                policy=Policy(),
                pending=pending,
                first=row.next_time,
                due=row.next_run_time,
                reckoning=NOW_DIALECT,
            )
        )

    def _settle(self, outcome: str, last: int | None, count: int, started: float | None) -> None:
        row = self._there()
        self.fence += 1
        self.rows.append(
            LedgerRow(
                key="key",
                scheduled_time=row.next_time,
                fence=self.fence,
                version=self.version,
                outcome=outcome,
                detail=None if outcome == "finished" else "late",
                last=last,
                count=count,
                previous=row.previous,
                attempts=1,
                error=None,
                node="n",
                started=started,
                ended=self.now,
                reckoning=NOW_DIALECT,
            )
        )
        end = row.next_time if last is None else last
        time = cron.next_time(row.rule.cron, end, row.rule.timezone)
        self.row = replace(row, next_time=time, next_run_time=time + row.rule.delay, previous=end)

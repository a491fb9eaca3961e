"""The result of an audit of one schedule: how many occurrences ran, and which violate its definition."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

_MAX_LISTED = 1000
"""The maximum number of violations of one schedule that are listed. Further violations are only counted."""


class Kind(StrEnum):
    """How an occurrence can violate the definition of its schedule."""

    MISSING = "missing"
    FAILED = "failed"
    DOUBLED = "doubled"
    EARLY = "early"
    EXTRA = "extra"
    UNPERMITTED = "unpermitted"
    LATE = "late"
    OVERLAPPING = "overlapping"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Why:
    """The explanation of a violation: text, and the times that belong to it (unix seconds).

    - `behind`: the `scheduled_time` of the run for which the violating occurrences wait; None if they wait for no run.
    - `next_attempt`: when the run at `behind` is retried, or without `behind` the occurrence itself; None without a
      retry.
    """

    what: str
    behind: int | None = None
    next_attempt: float | None = None


@dataclass(frozen=True, slots=True)
class Violation:
    """A violation of one kind by `count` occurrences.

    `time`: the first of these occurrences. `last`: the last of them, or None if there is only one.
    """

    kind: Kind
    time: int
    why: Why
    last: int | None = None
    count: int = 1

    @property
    def what(self) -> str:
        return self.why.what


@dataclass(slots=True)
class Verdict:
    """The result of an audit of one schedule.

    Without violations, the ledger proves that every due occurrence ran, is running, or was skipped for a permitted
    reason.

    - `known`: whether the schedule exists or has existed.
    - `ran`: how many occurrences were finished or enqueued. `run_now` requested `extra_runs` of them, and backfills ran
      `backfilled` of them.
    - `skipped`: how many occurrences were skipped for a permitted reason. `reasons`: these reasons.
    - `running`: how many occurrences a worker is running now.
    - `pending`: how many occurrences need not have begun yet.
    - `first`, `last`: the first and the last occurrence that ran or was skipped.
    - `counts`: how many occurrences violate the definition, by kind.
    - `unlisted`: how many violations are not in `violations`.
    - `notes`: remarks that are not violations, each with a time.
    """

    key: str
    known: bool = True
    ran: int = 0
    extra_runs: int = 0
    backfilled: int = 0
    skipped: int = 0
    running: int = 0
    pending: int = 0
    reasons: set[str] = field(default_factory=set)
    first: int | None = None
    last: int | None = None
    violations: list[Violation] = field(default_factory=list)
    counts: Counter[Kind] = field(default_factory=Counter)
    unlisted: int = 0
    notes: list[tuple[str, float]] = field(default_factory=list)
    _continues: bool = False
    """Whether the next violation may extend the last one. False if an occurrence was settled after the last violation.
    """

    @property
    def missing(self) -> int:
        return self.counts[Kind.MISSING]

    @property
    def failed(self) -> int:
        return self.counts[Kind.FAILED]

    @property
    def expected(self) -> int:
        """How many occurrences there should be, including skipped ones and extra runs."""
        named = sum(self.counts[kind] for kind in (Kind.MISSING, Kind.FAILED, Kind.UNPERMITTED, Kind.UNKNOWN))
        return self.ran + self.skipped + self.running + self.pending + named

    def add_violation(self, kind: Kind, time: int, why: Why | str, last: int | None = None, count: int = 1) -> None:
        """Add a violation. If the last violation has the same kind and explanation, extend it instead."""
        why = Why(why) if isinstance(why, str) else why
        self.counts[kind] += count
        before = self.violations[-1] if self.violations and self._continues else None
        end = time if last is None else last
        self._continues = kind in (Kind.UNPERMITTED, Kind.MISSING)
        if before is not None and (before.kind, before.why) == (kind, why):
            self.violations[-1] = replace(before, last=end, count=before.count + count)
        elif len(self.violations) < _MAX_LISTED:
            self.violations.append(Violation(kind, time, why, end if end > time else None, count))
        else:
            self.unlisted += 1

    def settled(self, first: int, last: int) -> None:
        """Record that the occurrences from `first` to `last` were settled without a violation."""
        self.first = first if self.first is None else min(self.first, first)
        self.last = last if self.last is None else max(self.last, last)
        self._continues = False

    def skip(self, reason: str, count: int) -> None:
        if count:
            self.skipped += count
            self.reasons.add(reason)


def as_object(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as a JSON object, with times in unix seconds. The names in it and their meanings are stable."""
    counts = ("expected", "ran", "extra_runs", "backfilled", "skipped", "running", "pending", "failed", "missing")
    return {
        "key": verdict.key,
        "proved": not verdict.violations,
        **{name: getattr(verdict, name) for name in (*counts, "first", "last")},
        "reasons": sorted(verdict.reasons),
        "violations": [_violation_object(found) for found in verdict.violations],
        "unlisted": verdict.unlisted,
        "notes": [{"what": what, "time": time} for what, time in verdict.notes],
    }


def _violation_object(found: Violation) -> dict[str, Any]:
    members: dict[str, Any] = asdict(found)
    why: dict[str, Any] = members.pop("why")
    return members | why

"""The ranges of occurrences that an audit has seen, and their hash."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psched.schedules.audited_records_hash import AuditEvidence, Stretch
from psched.store.ledger import LedgerRow


def entry(time: int, previous: int | None, outcome: str = "finished", **more: Any) -> LedgerRow:
    given: dict[str, Any] = {"key": "é<", "outcome": outcome, "attempts": 1, "error": None, "node": None} | more
    return LedgerRow(
        scheduled_time=time, fence=1, version=1, previous=previous, ended=time + 1.5, reckoning="", **given
    )


def noted(rows: Sequence[LedgerRow], keep: bool = False) -> AuditEvidence:
    evidence = AuditEvidence(keep)
    assert list(evidence.of([], rows)) == list(rows)
    return evidence


def test_occurrences_that_follow_each_other_are_one_stretch() -> None:
    rows = [
        entry(60, None),
        entry(120, 60),
        entry(130, 60, extra=True),
        entry(180, 120, "skipped", last=300),
        entry(360, 300, "failed"),
        entry(420, 360),
        entry(540, 480),
    ]
    assert noted(rows).stretches == [
        Stretch("settled", 60, 120),
        Stretch("skipped", 180, 300),
        Stretch("failed", 360, 360),
        Stretch("settled", 420, 420),
        Stretch("settled", 540, 540),
    ], "an entry that another one is missing before begins a stretch"


def test_the_hash_is_that_of_all_fields() -> None:
    rows = [entry(60, None), entry(120, 60)]
    evidence = noted(rows, keep=True)
    assert all(line.isascii() for line in evidence.lines)
    assert (evidence.sha256, evidence.entries, len(evidence.lines)) == (noted(rows).sha256, 2, 2)
    assert noted([rows[0], entry(120, 60, node="h/1")]).sha256 != evidence.sha256
    assert noted(rows).lines == []

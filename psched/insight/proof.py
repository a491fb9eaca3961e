"""Audits of schedules from the ledger, page by page, with the records that the audits used."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from psched.clock import monotonic
from psched.schedules.audit_result import Kind, Verdict, as_object
from psched.schedules.audited_records_hash import AuditEvidence
from psched.schedules.collection import ScheduleCollection

_LONGEST = 4.0
"""Seconds after which no further audit of a page begins. The page then ends early."""
LONGEST_AUDIT = 20.0
"""The audit of one schedule ends after this many seconds."""

_TOO_LONG = (
    f"its audit was stopped after {LONGEST_AUDIT:.0f} s; choose a shorter range, or use psched audit, which has no "
    "limit"
)


@dataclass(frozen=True, slots=True)
class Proof:
    """The result of one schedule's audit."""

    verdict: Verdict
    evidence: AuditEvidence


@dataclass(frozen=True, slots=True)
class ProofPage:
    """The audits of some schedules for the occurrences from `since` to `until` (unix seconds, both included).

    `after`: the next page begins after this key; None: this is the last page. `made`: when the audits began, in unix
    seconds by the database's clock.
    """

    since: int
    until: int
    late: float | None
    proofs: Sequence[Proof]
    after: str | None
    made: float

    @property
    def is_proved(self) -> bool:
        """Whether the page has a schedule, and no audit has a violation. An unknown verdict counts as a violation."""
        return bool(self.proofs) and not any(each.verdict.violations for each in self.proofs)

    @property
    def sha256(self) -> str:
        """The SHA-256 of a text with one line for each audit. A line is the SHA-256 of the audit's evidence."""
        return hashlib.sha256("".join(f"{each.evidence.sha256}\n" for each in self.proofs).encode()).hexdigest()

    def as_object(self) -> dict[str, Any]:
        """Return the page in its JSON form. Later versions must keep the names in this form, and their meanings."""
        return {
            "format": 1,
            "since": self.since,
            "until": self.until,
            "late": self.late,
            "made": self.made,
            "proved": self.is_proved,
            "sha256": self.sha256,
            "after": self.after,
            "schedules": [
                as_object(each.verdict)
                | {
                    "sha256": each.evidence.sha256,
                    "changes": each.evidence.changes,
                    "entries": each.evidence.entries,
                    "records": [json.loads(line) for line in each.evidence.lines],
                }
                for each in self.proofs
            ],
        }


def timed_audits(
    schedules: ScheduleCollection,
    keys: Iterable[str],
    since: int,
    until: int,
    late: float | None = None,
    keep: bool = False,
) -> Iterator[Proof]:
    """Yield the audits of schedules. Each audit takes up to `LONGEST_AUDIT` seconds.

    An audit that would take longer has an unknown verdict, and no evidence.
    """
    audits = schedules.audits_with_evidence(keys, since, until, late=late, keep=keep, seconds=LONGEST_AUDIT)
    for key, verdict, evidence in audits:
        if verdict is None or evidence is None:
            unknown = Verdict(key)
            unknown.add_violation(Kind.UNKNOWN, since, _TOO_LONG, until, 0)
            yield Proof(unknown, AuditEvidence())
        else:
            yield Proof(verdict, evidence)


def proof_page(
    schedules: ScheduleCollection,
    keys: Iterable[str],
    since: int,
    until: int,
    late: float | None,
    limit: int,
    keep: bool = False,
) -> ProofPage:
    """Audit up to `limit` of the schedules, at least one. After a few seconds, no further audit begins.

    `keep`: keep the records that the audits used.
    """
    made, begun = schedules.store.now(), monotonic()
    wanted = list(islice(keys, limit + 1))
    proofs: list[Proof] = []
    for proof in timed_audits(schedules, wanted[:limit], since, until, late, keep):
        proofs.append(proof)
        if monotonic() - begun > _LONGEST:
            break
    after = wanted[len(proofs) - 1] if len(proofs) < len(wanted) else None
    return ProofPage(since, until, late, proofs, after, made)

"""The page Proof: audits of a range of time from the ledger, to print or export."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from psched.cron import tz_database
from psched.error_messages import InvalidValueError
from psched.insight import Proof, ProofPage
from psched.schedules.audit_result import Kind, Violation
from psched.time_text import local_datetime
from psched.web.charts import Mark, Span, Tick, marks, ticks
from psched.web.pages.schedules import schedules_of
from psched.web.rendering import page, path
from psched.web.shared_state import SharedState
from psched.web.visitor_input import moment_text, parse_moment, parse_span, parsed

_DAY = 86400
_DEFAULT = 7 * _DAY
_LONGEST = 400 * _DAY
_PAGE = 25
_LISTED = 10
"""The maximum number of violations of one schedule on the page. The export has up to 1,000."""
_KEPT = 300.0
EXPORT_PATIENCE = 60.0
"""Seconds for which an export waits for its answer. It is long, because a program that fetches an export does not ask
again.
"""
_STEPS: Final = (3600, 3 * 3600, 6 * 3600, _DAY, 2 * _DAY, 7 * _DAY, 30 * _DAY, 90 * _DAY)
_DRAWN: Mapping[Kind, str] = {Kind.UNKNOWN: "unknown", Kind.MISSING: "missing"}
_LEGEND: Final = [
    (word, marks([Span(kind, 0, 1)], 0, 1))
    for kind, word in (
        ("proved", "ran, without a gap"),
        ("skipped", "skipped, as allowed"),
        ("missing", "missing"),
        ("violation", "another violation"),
        ("unknown", "not recorded"),
    )
]


@dataclass(frozen=True, slots=True)
class ProofLine:
    """The audit of one schedule, in words and as a strip."""

    proof: Proof
    marks: Sequence[Mark]
    listed: Sequence[Violation]
    unlisted: int


def proof(request: Request, shared: SharedState) -> Response:
    table, given = schedules_of(shared), request.query_params
    now: float = request.state.status.snapshot.taken
    prefix, after = given.get("prefix", ""), given.get("after", "")
    # write the times into the address, so that it always means the same range
    if not (given.get("from") and given.get("to")):
        until = parse_moment("to", given["to"]) if given.get("to") else now
        since = parse_moment("from", given["from"]) if given.get("from") else until - _DEFAULT
        wanted = {"from": moment_text(since), "to": moment_text(until), "prefix": prefix, "late": given.get("late", "")}
        return RedirectResponse(path(request, "proof", **wanted), HTTPStatus.SEE_OTHER)
    since, until = int(parse_moment("from", given["from"])), int(parse_moment("to", given["to"]))
    if not 0 < until - since <= _LONGEST:
        raise InvalidValueError("'to' must be after 'from', by at most 400 days")
    late = _late(given.get("late", ""))
    is_export = _is_export(request)
    keep = is_export and given.get("records") == "1"

    def ask() -> ProofPage:
        return table.proof(since, until, prefix=prefix, late=late, after=after, limit=_PAGE, keep=keep)

    question = ("proof", since, until, prefix, late, after, keep)
    found = shared.slow_answer(question, _KEPT, ask, EXPORT_PATIENCE if is_export else None)
    if found is None and is_export:
        again = "The proof is still being computed. Fetch it again in a minute.\n"
        return Response(again, HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": "60"}, "text/plain")
    if found is None:
        return page(request, "computing.html", title="Proof", headers={"Refresh": "1"})
    if is_export:
        return _export(found)
    wanted = {name: given[name] for name in ("from", "to", "prefix", "late") if given.get(name)}
    return page(
        request,
        "proof.html",
        found=found,
        lines=[_line(each, found, now) for each in found.proofs],
        counts=_counts(found),
        ticks=_ticks(found),
        legend=_LEGEND,
        wanted=wanted,
        after=after,
        tz_database=tz_database(),
    )


def patience(request: Request) -> float:
    """Return how many more seconds an export may wait for its audits. A page does not wait, so return 0 for a page."""
    return EXPORT_PATIENCE if _is_export(request) else 0.0


def _is_export(request: Request) -> bool:
    return request.query_params.get("format") == "json"


def _late(text: str) -> float | None:
    return parsed(text, parse_span, "late must be seconds, or a span such as 5m") if text else None


def _export(found: ProofPage) -> Response:
    text = json.dumps(found.as_object(), indent=1).replace("<", "\\u003c")
    begun = datetime.fromtimestamp(found.since).astimezone()
    name = f'attachment; filename="psched-proof-{begun:%Y-%m-%d}.json"'
    return Response(text + "\n", media_type="application/json", headers={"Content-Disposition": name})


def _counts(found: ProofPage) -> Mapping[str, int]:
    counts: Counter[str] = Counter()
    for each in found.proofs:
        verdict = each.verdict
        counts["expected"] += verdict.expected
        counts["ran"] += verdict.ran
        counts["skipped"] += verdict.skipped
        counts["open"] += verdict.running + verdict.pending
        counts["not proved"] += bool(verdict.violations)
    return counts


def _ticks(found: ProofPage) -> Sequence[Tick]:
    moment = local_datetime(found.since)
    offset = 0 if moment is None else int((moment.utcoffset() or moment - moment).total_seconds())
    length = found.until - found.since
    step = next((each for each in _STEPS if length / each <= 9), _STEPS[-1])
    return ticks(found.since, found.until, step, offset)


def _line(each: Proof, found: ProofPage, now: float) -> ProofLine:
    violations = each.verdict.violations
    spans = _strip(each, min(found.until, now))
    return ProofLine(
        each,
        marks(spans, found.since, found.until),
        violations[:_LISTED],
        len(violations) - len(violations[:_LISTED]) + each.verdict.unlisted,
    )


def _strip(each: Proof, until: float) -> list[Span]:
    """Return the audit as spans.

    Each occurrence is drawn up to the next one, so that a gap shows a missing occurrence.
    """
    spans = []
    stretches = each.evidence.stretches
    for number, stretch in enumerate(stretches):
        following = stretches[number + 1].first if number + 1 < len(stretches) else each.evidence.reached
        end = stretch.last if following is None else min(following, until)
        kind = {"settled": "proved", "skipped": "skipped", "failed": "violation"}[stretch.kind]
        spans.append(Span(kind, stretch.first, max(end, stretch.first)))
    for violation in each.verdict.violations:
        end = violation.time if violation.last is None else violation.last
        title = partial("{}: {}".format, violation.kind, violation.what)
        spans.append(Span(_DRAWN.get(violation.kind, "violation"), violation.time, end, title))
    return spans

"""The page Doctor: the findings of `psched doctor`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from psched.web.rendering import page
from psched.web.shared_state import SharedState


def doctor(request: Request, shared: SharedState) -> Response:
    findings = shared.answer("doctor", 10, shared.insight.doctor)
    bad = [each for each in findings if not each.ok]
    return page(request, "doctor.html", findings=findings, bad=bad, warned=[each for each in findings if each.warning])

"""The workers of all hosts, and whether everything that they need is in order."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from psched.web.rendering import page
from psched.web.site import Site


def nodes(request: Request, site: Site) -> Response:
    snapshot = request.state.status.snapshot
    return page(request, "nodes.html", nodes=snapshot.nodes, now=snapshot.taken)


def doctor(request: Request, site: Site) -> Response:
    findings = site.answer("doctor", 10, site.insight.doctor)
    bad = [each for each in findings if not each.ok]
    return page(request, "doctor.html", findings=findings, bad=bad, warned=[each for each in findings if each.warning])

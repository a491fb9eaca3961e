"""The page Nodes: the nodes of all hosts."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from psched.web.rendering import page
from psched.web.shared_state import SharedState


def nodes(request: Request, shared: SharedState) -> Response:
    snapshot = request.state.status.snapshot
    return page(request, "nodes.html", nodes=snapshot.nodes, now=snapshot.taken)

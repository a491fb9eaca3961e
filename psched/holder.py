"""A name for one incarnation of one process, written with the leases it takes. Any process."""

from __future__ import annotations

import secrets
import socket


def holder_name(role: str) -> str:
    """Return `host/role/random`, at most 255 characters; `role` says which process of the host it is."""
    return f"{socket.gethostname()[:120]}/{role[:100]}/{secrets.token_hex(8)}"

"""Loopback ports for private servers. Runs in the test process."""

from __future__ import annotations

import random
import socket

HOST = "127.0.0.1"

_PORTS = range(20_000, 32_000)
"""Ports below the ephemeral ports: while a server is down, no outgoing connection can take the server's port."""


def free_port() -> int:
    """Return a loopback port on which no program listens."""
    while not is_free(port := random.choice(_PORTS)):
        pass
    return port


def is_free(port: int) -> bool:
    """Return whether no program listens on a loopback port."""
    with socket.socket() as dry_run:
        return dry_run.connect_ex((HOST, port)) != 0

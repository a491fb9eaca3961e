"""`psched web`: serves the pages by uvicorn in a process of its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import closing
from types import FrameType

import uvicorn

from psched.config import Settings
from psched.config.web import is_loopback
from psched.errors import ConfigError
from psched.web.access import FULL
from psched.web.application import app
from psched.web.shared_state import SharedState

_GRACE = 3
"""Seconds that unfinished answers get when the server stops."""


def serve(settings: Settings, listen: tuple[str, int], ready: Callable[[str], None]) -> None:
    """Serve the pages until TERM or INT. Calls `ready` with the URL when the socket listens.

    Raises ConfigError if other hosts can reach the address, but visitors do not authenticate. Raises OSError if the
    address is in use.
    """
    made = app(settings)
    host, port = listen
    with closing(made.state.shared) as shared:
        if not is_loopback(host) and not shared.gate.authenticates:
            raise ConfigError(
                f"web.listen: other hosts can reach {host}, but visitors do not authenticate; set "
                f"{FULL}=user:password in the environment, or web.user_header and web.trusted_proxies behind a proxy "
                "that authenticates, or listen on 127.0.0.1"
            )
        config = uvicorn.Config(
            made,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_GRACE,
        )
        is_v6 = ":" in host
        with socket.create_server((host, port), family=socket.AF_INET6 if is_v6 else socket.AF_INET) as listener:
            ready(f"http://{f'[{host}]' if is_v6 else host}:{listener.getsockname()[1]}/")
            asyncio.run(_Server(config, shared).serve([listener]))


class _Server(uvicorn.Server):
    """A server that ends streams of changes when it stops. uvicorn itself would wait for these streams."""

    def __init__(self, config: uvicorn.Config, shared: SharedState) -> None:
        super().__init__(config)
        self._shared = shared

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop. uvicorn's own method would also send the signal to the process again after the stop."""
        self._shared.status_poller.end()
        self.force_exit = self.should_exit
        self.should_exit = True

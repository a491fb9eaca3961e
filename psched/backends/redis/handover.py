"""What a script that advances a schedule is to submit besides: the "connection" that `Also` is given on Redis.

Redis has no transactions that stay open; so what `TaskStore.submit` would write is kept here until the one script that
does it all is sent. Used in children.
"""

from __future__ import annotations

from collections.abc import Sequence

from psched.backends.redis.scripts import compose
from psched.backends.redis.server import Argument, RedisServer

HAND_OVER = compose("queue", "hand_over")
"""The script that advances a schedule and submits what it has become."""


class Handover:
    """The tasks of one `advance`: the table they go to, and the arguments that describe them."""

    def __init__(self, server: RedisServer) -> None:
        """`server`: where the schedule is."""
        self.server = server
        self.tables: list[str] = []
        self.arguments: list[Argument] = []

    def submit(self, table: str, arguments: Sequence[Argument]) -> None:
        """Take note of tasks; `arguments` are those of the script that submits. Raises ValueError the second time."""
        if self.tables:
            raise ValueError("one occurrence becomes one submission; give all its tasks to one call")
        self.tables = [table]
        self.arguments = list(arguments)

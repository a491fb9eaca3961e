"""The contract of wake-ups: how a store notifies an idle poller of rows that may be due."""

from __future__ import annotations

from typing import Protocol


class Wakeup(Protocol):
    """Notifies one waiting thread that rows may have become due. A notification may be lost, or come without a due row.

    A Wakeup has its own connection, or a socket or file of this host. `listen` and `is_notified` raise the driver's
    errors, or OSError. After an error the waiting thread polls as if it had no notifications, and may listen again
    later.
    """

    @property
    def proven(self) -> bool:
        """Whether notifications are known to arrive, so that rare polls are enough.

        A connection pooler can suppress notifications.
        """

    @property
    def covers_all_hosts(self) -> bool:
        """Whether notifications come for rows from every host, and only after the row can be read."""

    def listen(self, seconds: float) -> None:
        """Listen for at most about `seconds`. Earlier notifications may be dropped. The call waits for the server."""

    def fileno(self) -> int:
        """Return the descriptor that is readable after a notification. Call this only while listening."""

    def is_notified(self) -> bool:
        """Return whether a notification came since the last call, or since `listen`. The call never waits.

        After a notification, `listen` may have to be called again.
        """

    def stop_listening(self) -> None:
        """Stop listening, so that the next notification goes to an idle worker. Never waits, never raises."""

    def close(self) -> None:
        """Close the connection. May be called repeatedly."""

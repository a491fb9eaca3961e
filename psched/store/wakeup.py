"""The contract of wake-up notifications: rows became due in the store."""

from __future__ import annotations

from typing import Protocol


class Wakeup(Protocol):
    """Notifies one waiting thread that rows may have become due. A notification may be lost, or be in vain.

    A Wakeup has a connection of its own. `listen` and `is_notified` raise the driver's errors of this connection; the
    waiting thread then polls as without notifications, and may listen again later.
    """

    @property
    def proven(self) -> bool:
        """Whether notifications are known to arrive, so that polls may be rare. A pooler can suppress them."""
        ...

    def listen(self, seconds: float) -> None:
        """Listen for at most about `seconds`; earlier notifications may be dropped. Waits for the server."""
        ...

    def fileno(self) -> int:
        """Return the descriptor that is readable after a notification. Only while it listens."""
        ...

    def is_notified(self) -> bool:
        """Return whether a notification came since the last call, or since `listen`. Never waits.

        After a notification, `listen` may have to be called again.
        """
        ...

    def stop_listening(self) -> None:
        """Stop listening, so that a notification goes to an idle worker instead. Never waits or raises."""
        ...

    def close(self) -> None:
        """Close its connection; idempotent."""
        ...

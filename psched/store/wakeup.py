"""What an idle worker may hear: somebody made rows due. Used in children."""

from __future__ import annotations

from typing import Protocol


class Wakeup(Protocol):
    """Rings when somebody may have made rows due. A hint and no promise: a ring may be lost, or be for nothing.

    One waiting thread's, with a connection of its own. Errors of this connection come from `arm` and `rang` as the
    driver's own; the waiting thread then polls as if there were no bell, and may arm it again later.
    """

    @property
    def proven(self) -> bool:
        """Whether it is known to ring, so that who listens may poll rarely. A pooler in between can make it mute."""
        ...

    def arm(self, seconds: float) -> None:
        """Listen for at most about `seconds` from now; rings from before may be forgotten. Waits for the server."""
        ...

    def fileno(self) -> int:
        """Return the descriptor that is readable when it may have rung. Only while it is armed."""
        ...

    def rang(self) -> bool:
        """Tell whether it has rung since the last call, or since it was armed. Never waits.

        One that has rung may have to be armed again before it rings anew.
        """
        ...

    def disarm(self) -> None:
        """Listen no more, so that a ring for one of several is not lost on one who is busy. Never waits or raises."""
        ...

    def close(self) -> None:
        """Close its connection; idempotent."""
        ...

"""What dead children may still hold in the database, until somebody has given it back. In the master."""

from __future__ import annotations

from collections.abc import Iterable

from psched.daemon.boot import DeadChild


class Estate:
    """The dead whose leases nobody has given back. The next child to be born takes them over, whatever its slot.

    Where none is born, an heir does (see `executor`).
    """

    def __init__(self) -> None:
        self._unclaimed: list[DeadChild] = []

    @property
    def empty(self) -> bool:
        """Whether there is nothing to take over."""
        return not self._unclaimed

    def leave(self, dead: Iterable[DeadChild]) -> None:
        """Add dead children; also those whose heir died before it had given back."""
        self._unclaimed.extend(dead)

    def claim(self) -> tuple[DeadChild, ...]:
        """Hand all of them to a child that is being born."""
        claimed = tuple(self._unclaimed)
        self._unclaimed.clear()
        return claimed

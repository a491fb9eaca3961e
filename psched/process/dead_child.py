"""What the master knows of a dead child."""

from __future__ import annotations

from dataclasses import dataclass

from psched.model import WORKER_DIED


@dataclass(frozen=True, slots=True)
class DeadChild:
    """A dead child whose leases another process must release.

    - `holder`: the holder of its leases.
    - `running`: the tasks that the child ran, as `section:key`.
    - `error`: the error to record with these tasks.
    - `child`: the name of the child; empty if no other child has the same holder.
    - `claims`: for each of `running`, the number of the acquire (`Lease.claim`).
    - `is_fetcher`: whether this was a fetching child. Only the next fetching child finds the leases that a dead
      fetching child had.
    """

    holder: str
    running: tuple[str, ...] = ()
    error: str = WORKER_DIED
    child: str = ""
    claims: tuple[int, ...] = ()
    is_fetcher: bool = False

    def suspects(self, section: str) -> list[str]:
        """Return the keys of the tasks that the child ran in `section`."""
        prefix = f"{section}:"
        return [name.removeprefix(prefix) for name in self.running if name.startswith(prefix)]

    def own_claims(self, section: str) -> dict[str, int] | None:
        """Return the leases of the child in `section` that must be released, or None for all leases of its holder.

        If other children have the same holder, return the keys of the tasks that the child ran, each with the number of
        its acquire. Another child may have acquired the same key since.
        """
        if not self.child:
            return None
        prefix = f"{section}:"
        runs = zip(self.running, self.claims, strict=True)
        return {name.removeprefix(prefix): claim for name, claim in runs if name.startswith(prefix)}

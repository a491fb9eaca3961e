"""What differs between schedules and queue tasks for the engine: the end of a run. Used in children and clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from psched.errors import ScheduleError
from psched.model import Claim, NewTask, Row


class Completion(Protocol):
    """How the runs of one kind of row come to their end."""

    keeps_data: bool
    """Whether runs can change their data."""

    @property
    def maintenance(self) -> float:
        """Seconds for which `tidy` can be left alone while nothing is run."""
        ...

    def finish(self, claim: Claim, until: float) -> None:
        """Settle the claimed run as done. Raises PreemptedError, NotFoundError, AlreadyFinishedError."""
        ...

    def finish_many(self, claims: Sequence[Claim], until: float) -> list[ScheduleError | None]:
        """Settle claimed runs as done, in few transactions; for each None, or what `finish` would raise."""
        ...

    def finish_by(self, claim: Claim, task: NewTask, until: float) -> None:
        """Settle the claimed run as done by submitting `task`. Raises like `finish`, and NotSupportedError."""
        ...

    def fail(self, claim: Claim, error: str | None, until: float) -> Row | None:
        """Settle the claimed run as failed for good. Called only when `attempts_allowed` is no longer None.

        Returns None when that is done; the row as it is stored when it was changed since it was acquired, so that more
        attempts may be allowed now.
        """
        ...

    def cancel(self, claim: Claim, until: float) -> None:
        """Settle the claimed run as cancelled. Raises like `finish`, and NotSupportedError."""
        ...

    def save(self, claim: Claim, data: Mapping[str, Any], until: float) -> None:
        """Write the data of the claimed run. Raises like `finish`, and NotSupportedError."""
        ...

    def problem(self, row: Row) -> str | None:
        """Say why this row cannot be run, and the remedy; None when it can."""
        ...

    def pass_over(self, claim: Claim, now: float, until: float) -> bool:
        """Settle the claimed run when it is not to be run any more at `now` (database's clock), and tell whether so.

        Raises like `finish`.
        """
        ...

    def is_paused(self, row: Row) -> bool:
        """Tell whether the row waits for the end of a pause: it is neither run nor given up until then."""
        ...

    def attempts_allowed(self, row: Row, max_attempts: int | None) -> int | None:
        """Return after how many attempts the row has failed, `max_attempts` being its type's; None: never."""
        ...

    def maintain(self) -> bool:
        """Remove a small batch of what nobody needs any more; True when there may be more of it."""
        ...

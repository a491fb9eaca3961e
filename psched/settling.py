"""Where the verbs of a run go: what a task asks of the source that acquired it. Used in children and in clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from psched.model import Claim, NewTask, Row

T = TypeVar("T")
"""What is settled: a `psched.task.Task`."""


class Settling(Protocol[T]):
    """Where a task's verbs go: the source that acquired it. Each raises PreemptedError or NotFoundError.

    Those that settle return how the run was settled in the end, such as `failed` for what was not to be retried again.
    """

    shows_fence: bool
    max_data_size: int
    keeps_data: bool
    """Whether `save` can write data."""

    def finish(self, claim: Claim, until: float) -> str:
        """Finish the claimed run for good."""
        ...

    def finish_by(self, claim: Claim, task: NewTask, until: float) -> str:
        """Finish the claimed run by submitting `task` to the queue."""
        ...

    def retry(
        self, claim: Claim, wait: float | None, error: str | None, until: float, max_attempts: int | None = None
    ) -> str:
        """Make it due again `wait` seconds from now; None takes the configured `retry_wait`."""
        ...

    def put_off(self, claim: Claim, error: str, until: float) -> str:
        """Make it due again after the longest `retry_wait`, the attempt not counted."""
        ...

    def release(self, claim: Claim, until: float) -> str:
        """Make it due now, as if it had not been acquired."""
        ...

    def cancel(self, claim: Claim, until: float) -> str:
        """Retire it as cancelled."""
        ...

    def save(self, claim: Claim, data: Mapping[str, Any], until: float) -> None:
        """Write its data."""
        ...

    def retry_seconds(self, attempts: int) -> float | None:
        """Return how long `retry` is to wait after so many attempts; None leaves that to `retry`."""
        ...

    def attempts_allowed(self, row: Row, max_attempts: int | None) -> int | None:
        """Return after how many attempts it has failed, `max_attempts` being its type's; None: never."""
        ...

    def extend(self, tasks: list[T]) -> list[T]:
        """Renew the leases of `tasks` and return those whose lease is lost."""
        ...

    def forget(self, task: T) -> None:
        """Stop counting the run among those held."""
        ...

"""The base class of a child's work."""

from __future__ import annotations

from collections.abc import Sequence


class ChildBase:
    """The work of a child. This base class does nothing; a dry-run child uses it."""

    def prepare(self) -> None:
        """Check whether the child can work. Raises ConfigError."""

    def run(self) -> None:
        """Work in the main thread until the child is stopped or done."""

    def stop(self, immediate: bool, grace: float | None = None) -> None:
        """Stop after the running tasks. If `immediate`, stop within `grace` seconds.

        Called in the control thread, perhaps several times. Returns immediately.
        """

    def running(self) -> Sequence[str]:
        """Return the types of the running tasks for the process title. With `proc_title: key`, return their keys.

        Callable from any thread.
        """
        return ()

    def check(self) -> None:
        """Stop the child if it can no longer work reliably. Called in the control thread, at each heartbeat."""

    def was_idle(self) -> bool:
        """Return whether nothing was run since the last call. Only one thread calls this."""
        return True

    def trouble(self) -> str | None:
        """Return why the child cannot work now, such as a database that does not answer.

        Callable from any thread.
        """

    def report_suspects(self) -> None:
        """Name in the running table each task that has begun and is not settled yet.

        Each of these tasks may be why the process dies.
        """

"""Emits the telemetry events of one call that submits tasks: `submit_start` before the write, `submit_end` after it."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from psched.model import NewTask
from psched.telemetry import emit


class SubmitCall:
    """A context manager in which the caller writes the tasks.

    A listener of `submit_start` may replace `tasks`, to add headers.
    """

    __slots__ = ("__weakref__", "existing", "keeps_headers", "tasks")

    def __init__(self, tasks: Sequence[NewTask], keeps_headers: bool) -> None:
        self.tasks = tasks
        self.keeps_headers = keeps_headers
        self.existing: Sequence[str] = ()
        """After the write: the keys that existed before the write."""

    def __enter__(self) -> Self:
        emit("submit_start", call=self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        emit("submit_end", call=self, error=error)

"""One call that submits tasks, for listeners: `submit_start` before the tasks are written, `submit_end` after."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from psched.model import NewTask
from psched.telemetry import emit


class SubmitCall:
    """A context around the write. A listener of `submit_start` may replace `tasks`, to add headers to them."""

    __slots__ = ("__weakref__", "existing", "keeps_headers", "tasks")

    def __init__(self, tasks: Sequence[NewTask], keeps_headers: bool) -> None:
        """`keeps_headers`: whether the store does."""
        self.tasks = tasks
        self.keeps_headers = keeps_headers
        self.existing: Sequence[str] = ()
        """The keys that existed before, once the tasks are written."""

    def __enter__(self) -> Self:
        emit("submit_start", call=self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        emit("submit_end", call=self, error=error)

"""The data of one task of an embedded scheduler, as its row stores it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from psched.error_messages import shown
from psched.model import NewTask
from psched.scheduler.argument_checks import check_positive

RETRY_TIMEOUT = 60.0
"""The default number of seconds between a failed run and its retry."""


@dataclass(frozen=True, slots=True)
class TaskData:
    """The data of one task. `retry_timeout` (seconds) is only used with `retry`."""

    data: Any = None
    retry: bool = False
    retry_timeout: float = RETRY_TIMEOUT

    def __post_init__(self) -> None:
        """Raises ValueError for invalid options. The data is not checked."""
        if not isinstance(self.retry, bool):
            raise ValueError(f"retry must be True or False, got {shown(self.retry)}")
        check_positive("retry_timeout", self.retry_timeout)

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> TaskData:
        return cls(stored.get("data"), stored.get("retry", False), stored.get("retry_timeout", RETRY_TIMEOUT))

    def stored(self) -> dict[str, Any]:
        options = {"retry": True, "retry_timeout": self.retry_timeout} if self.retry else {}
        return {"data": self.data, **options}

    def task(self, key: str, name: str, run_at: float | None) -> NewTask:
        """Return a task with this data. Without `retry`, the task starts at most once, even if its process dies."""
        return NewTask(key, name, self.stored(), run_at, max_attempts=None if self.retry else 1)


def checked_task_data(data: object, retry: bool, retry_timeout: float | None) -> TaskData:
    """Return the arguments as `TaskData`. A `retry_timeout` of None means the default. Raises ValueError."""
    return TaskData(data, retry, RETRY_TIMEOUT if retry_timeout is None else retry_timeout)

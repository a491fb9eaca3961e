"""Submits tasks by the clock: each occurrence of a schedule becomes a task of the queue. Used in child processes.

    app: psched.handlers.enqueue:Enqueue

This application handles schedules of the type `enqueue`, and of all types that begin with `enqueue.`. The text after
the dot is the type of the submitted tasks. The data of a schedule may contain:

- `type`: the type of the tasks; overrides the type after the dot. Not on `rdb_compat`, where a `type` in the data is
  the type of the schedule itself.
- `data`: the data of the tasks; default `{}`.
- `user`, `max_running`, `priority`, `max_attempts`, `compression` and `headers`: as for `Queue.submit`.

The key of a task is `<schedule>@<scheduled_time>`, followed by `.extra` for an extra run (run-now). So each occurrence
is submitted only once, even if a process dies and the occurrence runs again. If both tables are in one database, one
transaction writes the task and advances the schedule. The occurrence is finished when its task is in the queue, so a
long task does not delay later occurrences.
"""

from __future__ import annotations

import logging
from typing import Annotated, Any, ClassVar

from attrs import Factory, asdict, frozen

from psched.application import Base, Dispatch
from psched.application.router import Routes
from psched.config.structuring import Check
from psched.handlers.options_from_data import mapping, number, read, text
from psched.model import NewTask
from psched.queue.queue import checked_task
from psched.schedules.validation import ENQUEUED
from psched.task import Task

__all__ = ["Enqueue"]

log = logging.getLogger(__name__)

_PREFIX = "enqueue."


@frozen(kw_only=True)
class EnqueueOptions:
    """The data of a schedule: which tasks to submit. `checked_task` checks whether they can be stored."""

    type: Annotated[str | None, Check(text)] = None
    data: Annotated[dict[str, Any], Check(mapping)] = Factory(dict)
    user: Annotated[str | None, Check(text)] = None
    max_running: Annotated[int | None, Check(number)] = None
    priority: Annotated[int, Check(number)] = 0
    max_attempts: Annotated[int | None, Check(number)] = None
    compression: Annotated[str | None, Check(text)] = None
    headers: Annotated[dict[str, Any], Check(mapping)] = Factory(dict)


class EnqueueHandler(Base):
    def perform(self) -> None:
        try:
            wanted = task_for(self.task)
        except ValueError as error:
            log.error("key=%s type=%s %s; retrying later", self.task.key, self.task.type, error)
            self.task.retry(error=str(error))
            return
        self.task.finish_by_submitting(wanted)


class Enqueue(Dispatch):
    routes: ClassVar[Routes] = {ENQUEUED: EnqueueHandler}


def task_for(occurrence: Task) -> NewTask:
    """Return the task to submit for an occurrence. Raises ValueError with a one-line message."""
    try:
        wanted = read(EnqueueOptions, occurrence.data)
    except ValueError as error:
        raise ValueError(f"the data of this schedule describes no task: {error}") from None
    named = occurrence.type[len(_PREFIX) :]
    fields = asdict(wanted, recurse=False)
    fields["type"] = named if wanted.type is None else wanted.type
    if not fields["type"]:
        raise ValueError(
            'the schedule gives no type for its tasks; add "type" to its data, or change the type of the schedule to '
            "enqueue.<type>"
        )
    return checked_task(NewTask(key=occurrence.enqueued_key, **fields))

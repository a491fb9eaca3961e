"""The handler of an embedded scheduler's occurrences: submits a task for each of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial

from psched.application.app import App
from psched.application.handler_base import Base
from psched.application.task_function import TaskFunction
from psched.errors import ScheduleError
from psched.model import NewTask
from psched.queue.queue import checked_task
from psched.scheduler.function_handlers import Function
from psched.scheduler.stores import OpenStores
from psched.scheduler.task_data import TaskData
from psched.task import Task

log = logging.getLogger(__name__)


class OccurrenceHandler(Base):
    def __init__(self, task: Task, function: Function, stores: OpenStores) -> None:
        super().__init__(task)
        self._function = function
        self._stores = stores

    def run(self) -> None:
        """Submit the task. If the database does not answer, the occurrence is due again when its lease ends."""
        occurrence = self.task
        key = occurrence.enqueued_key
        wanted = checked_task(self._submitted(key))
        try:
            occurrence.finish_by_submitting(wanted)
        except ScheduleError as error:
            log.info("key=%s another instance submits this occurrence: %s", key, error)
            occurrence.stop_reason = error
        except Exception as error:
            if not self._stores.queue.is_unavailable(error):
                raise
            log.warning("key=%s was not submitted because the database does not answer; retrying", key)
            occurrence.stop_reason = error
        else:
            self._stores.wakeup.wake_one()

    def _submitted(self, key: str) -> NewTask:
        occurrence, function = self.task, self._function
        if isinstance(function, TaskFunction):
            priority = function.options.priority
            return NewTask(key, occurrence.type, occurrence.data, occurrence.scheduled_time, priority=priority)
        return TaskData.of(occurrence.data).task(key, occurrence.type, occurrence.scheduled_time)


class OccurrenceRouter(App):
    def __init__(self, bindings: Mapping[str, Function], stores: OpenStores) -> None:
        super().__init__()
        for name, function in bindings.items():
            self._routes[name] = partial(OccurrenceHandler, function=function, stores=stores)

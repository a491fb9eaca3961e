"""For the tests of a project: runs the tasks that the tested code has enqueued."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from asgiref.sync import async_to_sync

from psched.application import Application, ApplicationSpec, load
from psched.application.event_loop import EventLoops
from psched.contrib.django import clients, configuration, task_handler
from psched.errors import ConfigError

__all__ = ["run_tasks"]


class _CallersThread(EventLoops):
    """Runs coroutines. Their work on Django's database is done in the calling thread, on this thread's connection."""

    def runner(self) -> Any:
        """Return an object with the method `run` of asyncio.Runner."""
        return self

    def run(self, coroutine: Coroutine[Any, Any, object], context: object = None) -> object:

        async def result() -> object:
            return await coroutine

        return async_to_sync(result)()


def run_tasks() -> int:
    """Run the due tasks of the queue, and the tasks that they enqueue, in this process. Return the number of runs.

    Within a `TestCase`, everything is done on the test's connection and in its transaction. As in a worker, a task that
    raises an error fails or becomes due again. Its result shows what has happened. Raises ConfigError, and errors of
    `django.db`.
    """
    section = configuration.settings().queue
    if section is None:
        raise ConfigError('PSCHED: the section "queue" is missing; add "queue": {}')
    require = tuple(name for name in section.require if name != configuration.CHILD_SETUP)
    routers = load(ApplicationSpec(section.app, section.include, require)).routers
    on_this_connection = task_handler.DjangoTasks(_CallersThread())
    application = Application(tuple(on_this_connection if each is task_handler.tasks else each for each in routers))
    wanted = application.types()
    queue = clients.queue()
    count = 0
    with clients.django_errors("queue"):
        while task := queue.poll([each for each in queue.store.due_by_type() if wanted.accepts(each)]):
            handler = application.handler(task)
            if handler is None:
                task.defer(f"no handler for the type {task.type!r}")
                continue
            handler.run()
            count += 1
    return count

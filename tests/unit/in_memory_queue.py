"""Constants for tests of a queue in memory."""

from __future__ import annotations

from psched.model import LeaseTimes
from psched.queue.queue import Queue
from psched.task import Task

TIMES = LeaseTimes(alive_time=60, retry_wait=0, prefetch_time=15)


def take(queue: Queue) -> Task:
    task = queue.poll()
    assert task is not None
    return task

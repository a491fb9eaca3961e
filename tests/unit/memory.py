"""What the tests of the queue in memory share. In the test process."""

from __future__ import annotations

from psched.queue.queue import Queue
from psched.task import LeaseTimes, Task

TIMES = LeaseTimes(alive_time=60, retry_wait=0, prefetch_time=15)


def take(queue: Queue) -> Task:
    task = queue.poll()
    assert task is not None
    return task

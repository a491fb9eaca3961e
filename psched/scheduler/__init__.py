"""The embedded scheduler. It runs in threads of the application's own process, without a daemon, signals or forks.

    scheduler = psched.create_scheduler("redis://127.0.0.1:6379/0")

A registration is a schedule. At each of its occurrences, a thread submits a task to a queue in the same database and
advances the schedule, in one transaction. Any instance that has bound the name of the task can run it.
"""

from psched.scheduler.scheduler import Scheduler, create_scheduler

__all__ = ["Scheduler", "create_scheduler"]

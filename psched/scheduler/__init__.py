"""The scheduler that lives inside an application: threads of the host's process, no daemon, no signals, no fork.

scheduler = psched.create_scheduler("redis://127.0.0.1:6379/0")

A registration is a schedule; each of its occurrences becomes a task of its own in a queue of the same database, in one
transaction with the step to the next occurrence. Whichever instance takes a task that it has bound runs it.
"""

from psched.scheduler.scheduler import Scheduler, create_scheduler

__all__ = ["Scheduler", "create_scheduler"]

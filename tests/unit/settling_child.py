"""The parts of a worker around one handler thread on a queue, for tests of settlement."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy.exc import OperationalError

from psched.acquisition.task_source import TaskSource
from psched.application import App, Application
from psched.backends import open_stores
from psched.errors import ScheduleError
from psched.execution.active_runs import ActiveRuns
from psched.execution.batch_size import BatchSizer
from psched.execution.handler_loop import HandlerLoop
from psched.execution.lease_renewal import LeaseRenewer
from psched.execution.poll_timer import PollTimer
from psched.execution.poller import SectionPoller
from psched.execution.stop_event import StopEvent
from psched.model import Claim, LeaseTimes, NewTask
from psched.process.running_table import RunningTable
from psched.queue.settlement import TaskSettlement
from psched.store import StoreSettings, TaskStore
from tests.prepared_sqlite import make_tables_in_memory
from tests.stores.queue.bench import keys_in

ALIVE, SHORT = 60.0, 15.0


class AwayError(OperationalError):
    """The error of a database that does not answer."""

    def __init__(self) -> None:
        super().__init__("UPDATE", {}, OSError("away"))
        self.connection_invalidated = True


class Counting(TaskSettlement):
    """Records how many runs are finished together. `before`: called before each such group; it may raise."""

    def __init__(self, store: TaskStore) -> None:
        super().__init__(store, retention=100, max_attempts=None)
        self.parts: list[int] = []
        self.threads: list[threading.Thread] = []
        """The threads that finished these groups."""
        self.before: Callable[[], None] = lambda: None

    def finish(self, claim: Claim, until: float) -> None:
        self.before()
        super().finish(claim, until)
        self.parts.append(1)

    def finish_many(self, claims: Sequence[Claim], until: float) -> list[ScheduleError | None]:
        self.before()
        errors = super().finish_many(claims, until)
        self.parts.append(len(claims))
        self.threads.append(threading.current_thread())
        return errors


class Child:
    """The parts of a worker around one handler thread on a queue, with a clock that the test sets."""

    def __init__(self, store: TaskStore) -> None:
        self.store = store
        self.time = 1000.0
        self.ending = Counting(store)
        self.app = App()
        self.source = TaskSource(store, self.ending, LeaseTimes(ALIVE, 300, SHORT), self.clock)
        self.poller = SectionPoller(
            "queue", self.source, Application((self.app,)), BatchSizer(10), PollTimer(1.0), None, 3.0
        )
        self.poller.settlement_buffer._clock = self.clock
        self.stopping = StopEvent()
        self.running_table = RunningTable(1)
        runs = ActiveRuns(self.running_table)
        self.runner = HandlerLoop(0, [self.poller], runs, self.stopping, self.clock)
        self.lease_renewer = LeaseRenewer([self.source], [self.runner], interval=2.0, clock=self.clock)
        self.prefetched_renewer = LeaseRenewer(
            [self.source], [self.runner], interval=2.0, prefetched=True, clock=self.clock
        )

    def poll(self) -> None:
        """Run and settle what is due."""
        for _ in self.runner._batches(self.poller):
            self.runner._run_waiting(self.poller)
        self.poller.settlement_buffer.flush()

    def clock(self) -> float:
        return self.time

    def serve(self, *keys: str, known: bool = True) -> None:
        """Submit tasks, and run what is due. A task's type is the part of its key before the dot.

        `known`: tasks of these types have run before.
        """
        for key in keys if known else ():
            self.poller.prefetch.observe_run(key.partition(".")[0], 0.0)
        self.store.submit([NewTask(key, key.partition(".")[0], run_at=n) for n, key in enumerate(keys, 1)])
        self.poll()


@contextmanager
def opened_child() -> Iterator[Child]:
    """Open a worker on an empty queue in memory, with a handler for the type `quick`."""
    store = open_stores("rdb", StoreSettings("sqlite://", "host/test/1", queue="psched_queue")).queue
    assert store is not None
    make_tables_in_memory(store, "psched_queue")
    child = Child(store)
    child.app.task("quick")(lambda task: None)
    yield child
    store.close()


def finished(child: Child) -> list[str]:
    return keys_in(child.store, status="finished")

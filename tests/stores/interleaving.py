"""Workers whose statements run in an order that a seed decides, so that any of them can be late.

Each worker is a thread that stops before every statement, or before a transaction of several statements (its locks
would block the others). The seed decides which worker continues, and when time passes. Time passes by a change of all
stored times: due times in the table, and, where the fence is a due time, the fences that workers hold. So a run of
hours takes milliseconds, and a finish may arrive at the worst moment.

Whatever happens meanwhile,
- an occurrence is finished once;
- no second worker gets a row while the first one's lease runs;
- a lease that has not ended can settle.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from psched.errors import AlreadyFinishedError, PreemptedError
from psched.model import Claim
from psched.store import ScheduleStore
from tests.stores.bench import LONG_AGO, Bench, soon
from tests.stores.sent_statements import before_each

LEASE = 100
"""Seconds of the first lease: longer than a run takes on a busy machine, where statements wait for locks."""
PASSING = 1000
"""Seconds that pass in one step: longer than any lease.

Each lease is a second longer than the lease before, as if it had been requested later. Otherwise a lease requested
before time passed would end at the same time as a new one.
"""

STEP = 60
BLOCKED_AFTER = 0.05
"""Seconds after which a statement counts as waiting for a lock, and the next worker continues."""


class PromiseBrokenError(AssertionError):
    """A promise about leases is broken."""


@dataclass
class Worker:
    """A worker that acquires, pauses and settles.

    `taken_in`: the epoch of the simulation in which it acquired its row.
    """

    name: str
    store: ScheduleStore
    simulation: Simulation
    rng: random.Random
    rounds: int
    claim: Claim | None = None
    taken_in: int = 0
    settling: bool = False
    in_transaction: bool = False
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    parked: threading.Event = field(default_factory=threading.Event)
    done: bool = False
    error: BaseException | None = None

    def work(self) -> None:
        """Run all rounds, one statement at a time."""
        try:
            self.simulation.current.worker = self
            for _ in range(self.rounds):
                self.pause()
                self._round()
        except BaseException as error:  # noqa: BLE001 - raised again where the test sees it
            self.error = error
        finally:
            self.done = True
            self.parked.set()

    def pause(self) -> None:
        """Wait until this worker may continue."""
        self.parked.set()
        self.go.acquire()

    def _round(self) -> None:
        self.taken_in = self.simulation.epoch
        self.settling = False
        for claim in self.store.acquire(1, self.simulation.lease()):
            self.claim = claim
            self.simulation.granted(self)
            self._run()
            self.claim = None

    def _run(self) -> None:
        for _ in range(self.rng.randrange(3)):
            self.pause()
        if self.rng.random() < 0.3:
            assert self.claim is not None
            (lease,) = self.store.extend([self.claim.lease], self.simulation.lease())
            if lease is None:
                self.simulation.refused(self, "extend")
                return
            self.claim = Claim(self.claim.row, lease)
        self._settle(self.rng.choice(["advance", "advance", "advance", "release", "retry"]))

    def _settle(self, verb: str) -> None:
        assert self.claim is not None
        lease, next_time = self.claim.lease, self.claim.row.scheduled_time + STEP
        self.settling = True
        try:
            if verb == "release":
                self.store.release(lease, soon())
            elif verb == "retry":
                self.store.retry(lease, -1, "error", soon())
            else:
                assert self.store.advance(self.claim, next_time, next_time, soon()) is None
                self.simulation.finished[self.claim.row.key, self.claim.row.scheduled_time] += 1
        except (PreemptedError, AlreadyFinishedError):
            self.simulation.refused(self, verb)


class Simulation:
    """One run: the workers, the table, and the checks of what was promised. `epoch`: how often time has passed."""

    def __init__(self, bench: Bench, stores: Sequence[ScheduleStore], seed: int, rounds: int = 5) -> None:
        """`stores`: one for each worker."""
        self.bench = bench
        self.seed = seed
        self.rng = random.Random(seed)
        self.epoch = 0
        self._leases = itertools.count()
        self.finished: Counter[tuple[str, int]] = Counter()
        self.current = threading.local()
        self.violations: list[str] = []
        self.refusals = 0
        self.workers = [
            Worker(f"w{n}", store, self, random.Random(f"{seed}/{n}"), rounds) for n, store in enumerate(stores)
        ]

    def run(self) -> None:
        """Run all workers to the end. Raises PromiseBrokenError."""
        self.bench.add(self.workers[0].store, f"seed{self.seed}")
        threads = [threading.Thread(target=worker.work) for worker in self.workers]
        with self._stops_before_statements():
            for thread in threads:
                thread.start()
            while running := [worker for worker in self.workers if not worker.done]:
                self._step(running)
            for thread in threads:
                thread.join(20)
        for worker in self.workers:
            if worker.error is not None:
                raise worker.error
        self._judge()

    def lease(self) -> int:
        """Return the seconds of the next lease."""
        return LEASE + next(self._leases)

    def granted(self, worker: Worker) -> None:
        """Check that no other worker has the row with a lease that cannot have ended."""
        for other in self.workers:
            if other is not worker and other.claim is not None and not other.settling and other.taken_in == self.epoch:
                self.violations.append(f"{worker.name} was given what {other.name} holds")

    def refused(self, worker: Worker, verb: str) -> None:
        """Check that a refusal has a reason: time has passed since the row was acquired."""
        self.refusals += 1
        if worker.taken_in == self.epoch:
            self.violations.append(f"{verb} of {worker.name} was refused although its lease had not ended")

    def _step(self, running: list[Worker]) -> None:
        ready = [worker for worker in running if worker.parked.is_set()]
        if not ready:
            running[0].parked.wait(BLOCKED_AFTER)
            return
        if len(ready) == len(running) and self.rng.random() < 0.25:
            self._let_time_pass()
        worker = self.rng.choice(ready)
        if worker.done:
            return
        worker.parked.clear()
        worker.go.release()
        worker.parked.wait(BLOCKED_AFTER)

    def _let_time_pass(self) -> None:
        """Let all leases end: move all stored times back, and also the fences that are due times."""
        self.bench.rows.pass_time(PASSING)
        self.epoch += 1
        if self.bench.compat:
            for worker in self.workers:
                if worker.claim is not None:
                    lease = worker.claim.lease
                    worker.claim = Claim(worker.claim.row, lease._replace(fence=lease.fence - PASSING))

    def _judge(self) -> None:
        for (key, occurrence), times in self.finished.items():
            if times != 1:
                self.violations.append(f"{key} {occurrence} was finished {times} times")
        row = self.bench.raw(f"seed{self.seed}")
        assert row is not None
        moved = row["next_time"] // self.bench.columns.per_second - LONG_AGO
        if moved != len(self.finished) * STEP:
            self.violations.append(f"{len(self.finished)} occurrences were finished, but it stands at {moved // STEP}")
        if self.violations:
            raise PromiseBrokenError(f"seed {self.seed}: " + "; ".join(self.violations))

    @contextlib.contextmanager
    def _stops_before_statements(self) -> Iterator[None]:
        def stop(statement: str) -> None:
            worker = getattr(self.current, "worker", None)
            if worker is not None and not worker.in_transaction:
                worker.pause()
            if worker is not None and statement.startswith(("BEGIN", "START", "COMMIT", "ROLLBACK")):
                worker.in_transaction = statement.startswith(("BEGIN", "START"))

        with before_each(stop):
            yield

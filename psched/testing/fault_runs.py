"""Runs a test under faults: first without faults, then with each single fault, then with random sequences of faults."""

from __future__ import annotations

import difflib
import inspect
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from pprint import pformat
from typing import Any, NoReturn

import pytest

from psched.testing.database_clock import DatabaseClock
from psched.testing.effects_file import Effects
from psched.testing.faults_decorator import Fault, FaultOptions, parameters, running, single_faults
from psched.testing.faulty_process import FaultyProcess, WorkReport, end_all
from psched.testing.inherited_connections import InheritedConnections
from psched.testing.open_tables import OpenTables

_HUNG = 30.0
"""Seconds after which a process counts as hanging."""
_MORE_RUNS = 8
"""In a pass of the test with n faults, at most this number plus 2 * n runs may fail or lose their process."""
_MOST_RUNS = 1000
"""The maximum number of runs of tasks in one pass. Otherwise a pass of tasks that submit themselves would never end."""
_MOST_LINES = 80
"""The maximum number of lines that are shown of the difference between two states."""

_OTHER_PROCESSES = (
    "handlers run in forked processes, and the test does not see their memory: state= must read a database, a file or "
    "psched_effects; replace a database in memory (sqlite://, Django's tests on SQLite) by a file"
)


@dataclass(slots=True)
class Record:
    """One pass of the test: the states before and after its tasks ran, as text, and what each process did."""

    before: str
    after: str = ""
    works: list[WorkReport] = field(default_factory=list)
    endings: list[tuple[str, str, str | None]] = field(default_factory=list)
    """Type, final status and last error of each task."""

    @property
    def runs(self) -> list[WorkReport]:
        return [work for work in self.works if work.task is not None]


class FaultTest:
    """One test function with `@faults`."""

    def __init__(
        self,
        options: FaultOptions,
        arrange: Callable[[], object],
        fixtures: dict[str, Any],
        tables: OpenTables,
        clock: DatabaseClock,
        folder: Path,
    ) -> None:
        """`arrange`: the test function.

        `fixtures`: the values of the fixtures of `arrange`, `state` and `reset`.
        """
        self._options = options
        self._arrange = arrange
        self._fixtures = fixtures
        self._tables = tables
        self._clock = clock
        self._folder = folder
        self._inherited = InheritedConnections()
        self._start = tables.queue.store.now()
        self._plan: list[Fault | None] = []
        self._frozen: deque[FaultyProcess] = deque()
        """Stopped processes: their lease has ended, or they wait for a lock of another process."""
        self._processes: list[FaultyProcess] = []

    def run(self) -> None:
        """Run all passes. Raises pytest's failure, or an error of the test function."""
        self._refuse()
        self._compile_statements()
        self._inherited.start()
        try:
            clean = self._clean()
            self._try_singles(clean)
            for seed in self._options.seeds:
                self._try_seed(clean, seed)
        finally:
            self._inherited.stop()
            self._reset()

    def _refuse(self) -> None:
        section = self._tables.settings.queue
        if section is not None and section.url in ("sqlite://", "sqlite:///:memory:"):
            _fail(f"psched_config: {section.url} is in memory, which the forked processes do not share; name a file")
        alias = InheritedConnections.open_transaction()
        if alias is not None:
            _fail(
                f"the test runs inside a transaction of Django's database {alias!r}, which the forked processes cannot "
                "see; use @pytest.mark.django_db(transaction=True) or a TransactionTestCase"
            )

    def _compile_statements(self) -> None:
        """Run a task in this process, so that forked processes need not compile the statements (30 ms, 2026-11-23)."""
        with self._tables.open_queue("compiler") as queue:
            queue.submit("compiled", "compiled")
            for task in queue.poll_multi():
                task.finish()
            queue["compiled"].delete()

    def _clean(self) -> Record:
        """Run twice without faults. Fail the test if the results differ, because faults would then prove nothing."""
        clean = self._pass([])
        self._check_endings(clean, "the run without faults")
        if not clean.runs:
            _fail("the test function submitted no task to psched_queue, so there is nothing to run under faults")
        if clean.after == clean.before:
            _fail(
                f"the run without faults did not change the state, so no fault could change it; {_OTHER_PROCESSES}.\n"
                f"The state: {clean.after}"
            )
        again = self._pass([])
        if again.before != clean.before:
            difference = _difference(clean.before, again.before, "before the first run", "before the second run")
            _fail(
                "the state before the second run differs from the state before the first; restore it in reset= or in "
                f"the test function:\n{difference}"
            )
        if again.after != clean.after:
            difference = _difference(clean.after, again.after, "after the first run", "after the second run")
            _fail(
                "two runs without faults left different states; state= must leave out values that differ each time, "
                f"such as times and generated keys:\n{difference}"
            )
        return clean

    def _try_singles(self, clean: Record) -> None:
        found = []
        for place, run in enumerate(clean.runs):
            for fault in single_faults(len(run.commits)):
                record = self._pass([*[None] * place, fault])
                if self._problem(clean, record) is not None:
                    found.append((f"{fault.describe(run.commits)}, task {run.task}", record))
        if found:
            name, record = found[0]
            others = "".join(f"\n  also: {other}" for other, _ in found[1:])
            order = _told([], record) if len(clean.runs) > 1 else ""  # a fault may also change the order
            _fail(f"{self._verdict(clean, record)}\nfault: {name}{others}\n{order}{self._problem(clean, record)}")

    def _try_seed(self, clean: Record, seed: int) -> None:
        plan = _random_plan(seed, [len(run.commits) for run in clean.runs])
        record = self._pass(plan)
        problem = self._problem(clean, record)
        if problem is not None:
            told = _told(plan, record)
            again = f"seed {seed} (repeat with: @psched.testing.faults(seeds=[{seed}], …)):"
            _fail(f"{self._verdict(clean, record)}\n{again}\n{told}{problem}")

    def _verdict(self, clean: Record, record: Record) -> str:
        return "not idempotent: " + (
            "the tasks leave a different state with a fault than without"
            if record.after != clean.after
            else "the tasks end differently with a fault than without"
        )

    def _problem(self, clean: Record, record: Record) -> str | None:
        """Return how a pass with faults differs from the pass without faults; None if there is no difference."""
        parts = []
        if record.after != clean.after:
            parts.append(_difference(clean.after, record.after, "without faults", "without faults"))
        if {ending[:2] for ending in record.endings} - {ending[:2] for ending in clean.endings}:
            parts += [
                f"task of type {type_} is {status}{f': {error.splitlines()[0]}' if error else ''}"
                for type_, status, error in record.endings
                if status != "finished"
            ]
        return "\n".join(parts) or None

    def _check_endings(self, record: Record, name: str) -> None:
        failed = [ending for ending in record.endings if ending[1] != "finished"]
        if failed:
            type_, status, error = failed[0]
            _fail(
                f"{name}: a task of type {type_} is {status}, not finished:\n{error or 'the handler did not settle it'}"
            )

    def _pass(self, plan: Sequence[Fault | None]) -> Record:
        """Reset, call the test function, and run all tasks. The n-th process has the n-th fault of the plan."""
        self._reset()
        token = running.set(True)
        try:
            self._arrange()
        except Exception as error:
            error.add_note(
                "psched.testing.faults calls the test function once for each fault, so reset= must undo its effects"
            )
            raise
        finally:
            running.reset(token)
        record = Record(self._state())
        self._plan = list(plan)
        with self._processes_ended():
            self._run_all(record, len(plan))
        record.after = self._state()
        rows = self._tables.queue.list()
        record.endings = sorted((row.type, row.status, row.last_error) for row in rows)
        return record

    def _run_all(self, record: Record, faults: int) -> None:
        store = self._tables.queue.store
        left = 2 * faults + _MORE_RUNS
        while left and (wait := store.next_due()) is not None:
            if wait:
                self._clock.shift(wait)
            self._work(record)
            last = record.works[-1]
            left -= not last.is_settled or last.error is not None
            if len(record.works) >= _MOST_RUNS:
                _fail(
                    f"tasks are still due after {_MOST_RUNS} runs; the last run was of {last.task}; does a task submit "
                    "itself?"
                )

    def _work(self, record: Record) -> None:
        """Run one task in a process, with the next fault of the plan."""
        fault = self._plan.pop(0) if self._plan else None
        file = self._folder / f"worker-{len(record.works)}.log"
        process = FaultyProcess(self._tables, self._inherited, fault, file)
        self._processes.append(process)
        place = len(record.works)
        record.works.append(WorkReport())
        if self._wait(process):
            self._frozen.append(process)
            self._clock.shift(self._tables.queue.source.times.alive_time + 1)
            self._work(record)
            if process in self._frozen:
                self._frozen.remove(process)
                process.resume()
            self._wait(process)
        work = record.works[place] = process.report()
        if work.broken is not None:
            _fail(f"a worker process failed:\n{work.broken}")

    def _wait(self, process: FaultyProcess) -> bool:
        """Wait for the end of a process. Return True if it has stopped itself.

        One process runs at a time, so that a test does the same each time. While `process` waits for a lock, it is
        stopped, and the frozen processes continue, one after another.
        """
        end = time.monotonic() + _HUNG * (1 + len(self._frozen))
        current = process
        while True:
            left = end - time.monotonic()
            stopped = current.wait(min(left, _HUNG), unless_asleep=bool(self._frozen))
            if stopped is not None:
                if current is process:
                    return stopped
                self._frozen.remove(process)
                current = process
            elif left <= 0:
                _fail(
                    f"task {process.report().task} did not end within {_HUNG:g} s in its forked process; does its "
                    "handler use a connection, lock or pool that was made before the fork?"
                )
            elif self._frozen:
                current.stop()
                self._frozen.appendleft(current)
                current = self._frozen.pop()
            current.resume()

    @contextmanager
    def _processes_ended(self) -> Iterator[None]:
        try:
            yield
        finally:
            end_all(self._processes)
            self._processes.clear()
            self._frozen.clear()

    def _reset(self) -> None:
        if self._options.reset is not None:
            self._call(self._options.reset)
        for value in self._fixtures.values():
            if isinstance(value, Effects):
                value.clear()
        self._tables.empty()
        self._clock.travel_to(self._start)

    def _state(self) -> str:
        state = self._call(self._options.state)
        if inspect.isawaitable(state) or inspect.isgenerator(state):
            _fail(f"state= returned {state!r}; it must return data, such as a list or dict")
        return pformat(state, width=100)

    def _call(self, function: Callable[..., Any]) -> Any:
        return function(**{name: self._fixtures[name] for name in parameters(function)})


def _random_plan(seed: int, commits: Sequence[int]) -> list[Fault | None]:
    """Return a plan with two to four faults. Equal arguments give equal plans.

    `commits`: the number of commits in each run.
    """
    chance = random.Random(seed)
    plan: list[Fault | None] = []
    for _ in range(chance.randint(2, 4)):
        if len(commits) > 1:
            plan += [None] * chance.randint(0, 1)
        plan.append(chance.choice([*single_faults(chance.choice(commits)), Fault("freeze", "returned")]))
    return plan


def _told(plan: Sequence[Fault | None], record: Record) -> str:
    """Return a line for each process: its task, and how it ended."""
    lines = []
    for number, work in enumerate(record.works, 1):
        fault = plan[number - 1] if number <= len(plan) else None
        ended = f"raised {work.error}" if work.error else "ran to its end" if work.is_settled else "did not end"
        what = fault.describe(work.commits) if fault is not None and work.is_hit else ended
        lines.append(f"  run {number} of {work.task}: {what}\n")
    return "".join(lines)


def _difference(expected: str, found: str, expected_name: str, found_name: str) -> str:
    lines = list(
        difflib.unified_diff(expected.splitlines(), found.splitlines(), expected_name, found_name, n=2, lineterm="")
    )
    more = [f"… {len(lines) - _MOST_LINES} more lines"] if len(lines) > _MOST_LINES else []
    return "\n".join(["the states:", *lines[:_MOST_LINES], *more])


def _fail(message: str) -> NoReturn:
    pytest.fail(message, pytrace=False)

"""A forked process that runs one task, with at most one fault: SIGKILL or SIGSTOP at a commit of its handler."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from psched.error_messages import one_line
from psched.errors import RUN_IS_OVER
from psched.process.linux import signal_at_death_of_parent
from psched.testing.commit_observer import Phase, observe, users_line
from psched.testing.drain import run_task
from psched.testing.faults_decorator import Fault, Place
from psched.testing.inherited_connections import InheritedConnections
from psched.testing.open_tables import OpenTables

_TICK = 0.002
_ASLEEP = 150
"""How many checks must find a process asleep before the process counts as waiting for a lock, not for a processor. The
count begins again when the process has used `_AWAKE` nanoseconds of processor time.
"""
_AWAKE = 2_000_000
"""If a process has used more than this many nanoseconds of processor time, its sleep counts as interrupted. The limit
is not 0, because SQLite sometimes tries again while it waits for a lock.
"""

_SIGNALS = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}


@dataclass(slots=True)
class WorkReport:
    """The report of a process, as far as it got. It is read from the file that the process wrote."""

    task: str | None = None
    """Type and key of the task that the process ran; None if no task was due."""
    data: str = ""
    commits: list[str] = field(default_factory=list)
    """The place in the source of each commit that the handler started."""
    is_hit: bool = False
    """Whether the fault happened."""
    error: str | None = None
    """The error that the handler raised."""
    is_settled: bool = False
    """Whether the handler ended and its run was then settled. Also true if the run had lost its lease."""
    broken: str | None = None
    """The traceback of an error outside of the handler."""


class FaultyProcess:
    """The parent's view of a process that runs one due task, and the report of that process."""

    def __init__(self, tables: OpenTables, inherited: InheritedConnections, fault: Fault | None, file: Path) -> None:
        """Fork the process. It writes its report to `file`."""
        self.fault = fault
        self._file = file
        file.write_bytes(b"")
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # the warning about a fork while other threads run, such as those of xdist
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid: int | None = os.fork()
        if self._pid == 0:
            _be_worker(tables, inherited, fault, file)

    @property
    def is_alive(self) -> bool:
        return self._pid is not None

    def wait(self, seconds: float, unless_asleep: bool = False) -> bool | None:
        """Wait until the process has ended or stopped itself. Return whether it is stopped; None if it still runs.

        `unless_asleep`: also return None if the process has slept for some time, as it does while it waits for a lock.
        """
        end = time.monotonic() + seconds
        sleep = _Sleep()
        while self._pid is not None:
            pid, status = os.waitpid(self._pid, os.WNOHANG | os.WUNTRACED)
            if pid and os.WIFSTOPPED(status):
                return True
            if pid:
                self._pid = None
            elif time.monotonic() >= end or (unless_asleep and sleep.is_long(self._pid)):
                return None
            else:
                time.sleep(_TICK)
        return False

    def stop(self) -> None:
        """Stop the process, and wait until it is stopped."""
        if self._pid is not None:
            os.kill(self._pid, signal.SIGSTOP)
            _, status = os.waitpid(self._pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                self._pid = None

    def resume(self) -> None:
        if self._pid is not None:
            os.kill(self._pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process if it is alive, and reap it."""
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = None

    def report(self) -> WorkReport:
        made = WorkReport()
        for line in self._file.read_bytes().splitlines():
            for name, value in json.loads(line).items():
                if name == "commits":
                    made.commits.append(value)
                else:
                    setattr(made, name, value)
        return made


class _Sleep:
    """Distinguishes a process that waits for a lock from a process that waits for a processor.

    The load of the machine does not matter. Only Linux shows whether a process sleeps. On other systems each check
    finds the process asleep.
    """

    def __init__(self) -> None:
        self._looks = 0
        self._used = 0

    def is_long(self, pid: int) -> bool:
        """Check the process. Return whether enough checks have found it asleep."""
        used, is_asleep = _activity(pid)
        if used > self._used + _AWAKE:
            self._looks, self._used = 0, used
        self._looks += is_asleep
        return self._looks >= _ASLEEP


def _activity(pid: int) -> tuple[int, bool]:
    """Return the nanoseconds of processor time, and whether all threads of the process sleep.

    A thread that waits for a processor or a disk does not sleep.
    """
    used, is_asleep = 0, True
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):  # a thread that has just ended, or a kernel without these counts
            is_asleep &= (thread / "stat").read_text().rpartition(")")[2].split()[0] == "S"
            used += int((thread / "schedstat").read_text().split()[0])
    return used, is_asleep


def _be_worker(tables: OpenTables, inherited: InheritedConnections, fault: Fault | None, file: Path) -> None:
    """Run one task and end the process. Runs no code of pytest or of the test."""
    log = os.open(file, os.O_WRONLY | os.O_APPEND)

    def report(**facts: object) -> None:
        os.write(log, json.dumps(facts).encode() + b"\n")

    try:
        gc.freeze()  # so that garbage collection does not copy the parent's pages
        signal_at_death_of_parent(signal.SIGKILL)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        inherited.leave_to_parent()
        _work(tables, fault, report)
    except BaseException:  # noqa: BLE001 – reported; it must not reach the parent's code
        report(broken=traceback.format_exc())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _work(tables: OpenTables, fault: Fault | None, report: Callable[..., None]) -> None:
    watch = _CommitWatch(fault, report)
    observe(watch.on_commit)
    tasks = tables.open_queue("worker").poll_multi(1)
    if not tasks:
        return
    [task] = tasks
    report(task=f"{task.type} {task.key}", data=repr(task.data))
    task.finished_later = True
    watch.is_running = True
    run = run_task(task, tables.application)
    watch.is_running = False
    if run.error is not None:
        report(error=one_line(run.error))
    watch.reach("returned")
    with suppress(*RUN_IS_OVER):  # another worker has run the task
        if task.concluded:
            task.finish()
    report(is_settled=True)


class _CommitWatch:
    """Counts the commits of the handler.

    At the place of the fault, sends the fault's signal to the current thread.
    """

    def __init__(self, fault: Fault | None, report: Callable[..., None]) -> None:
        self.is_running = False
        self._fault = fault
        self._report = report
        self._count = 0

    def on_commit(self, phase: Phase, statement: str) -> None:
        if self.is_running:
            if phase == "before":
                self._count += 1
                self._report(commits=users_line() or statement)
            self.reach(phase)

    def reach(self, place: Place) -> None:
        fault = self._fault
        if fault is not None and fault.place == place and fault.commit in (0, self._count):
            self._fault = None
            self._report(is_hit=True)
            # to this thread, not to the process, so that a commit in a thread other than the main thread stops, too
            signal.pthread_kill(threading.get_ident(), _SIGNALS[fault.kind])


def end_all(processes: Sequence[FaultyProcess]) -> None:
    """Kill and reap the living processes."""
    for process in processes:
        process.kill()

"""The commands of pschedd, and their exit codes, which are those of LSB init scripts."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import click
import psutil

from psched.cli.options import refuse_in_memory
from psched.clock import monotonic
from psched.config import Settings, load
from psched.config.validators import is_file
from psched.errors import ConfigError
from psched.process.signals import UPGRADE_NOW
from psched.supervisor.binary_upgrade import ExecCommand, hold_pid_file
from psched.supervisor.daemonize import Identity, Outcome, detach
from psched.supervisor.master_status import MasterStatus, PendingWorker, RequestStatus
from psched.supervisor.pidfile import (
    AlreadyRunningError,
    PidFile,
    is_stale,
    read_report,
    read_running,
    remove_unused,
    signal_running,
)
from psched.supervisor.run import RunOptions, run_master

DONE = 0
FAILED = 1
NOT_PERMITTED = 4
NOT_CONFIGURED = 6
NOT_RUNNING = 7

DIED = 1
STOPPED = 3
UNKNOWN = 4
"""Exit codes of `status`, besides DONE."""

_UPGRADE_TIMEOUT = 70.0
_RELOAD_TIMEOUT = 70.0
"""Seconds a command waits: longer than the limits of the master (`RunOptions`)."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Invocation:
    """The options of one command line."""

    environment: str | None
    config: Path
    include: tuple[str, ...]
    require: tuple[str, ...]
    types: tuple[str, ...]
    pid_file: Path | None
    immediate: bool
    timeout: float | None
    background: bool
    """Whether output goes to the log: after `start`, and in a master that replaces one started so."""
    app: tuple[str, ...]

    @classmethod
    def resolved(cls, **options: Any) -> Invocation:
        """Return the options with every path absolute: the working directory of the daemon is another one."""
        invocation = cls(**options)
        return replace(
            invocation,
            config=invocation.config.absolute(),
            pid_file=None if invocation.pid_file is None else invocation.pid_file.absolute(),
            include=tuple(str(Path(folder).absolute()) for folder in invocation.include),
            require=tuple(str(Path(name).absolute()) if is_file(name) else name for name in invocation.require),
        )

    def settings(self) -> Settings:
        """Return the configuration, overridden by the command line. Raises ConfigError."""
        settings = refuse_in_memory(load(self.config, self.environment))
        return settings.with_application(self.app, self.include, self.require, self.types)

    def pid_path(self) -> Path | None:
        """Return the path of the pid file, if one is configured."""
        return self.settings().pid_file if self.pid_file is None else self.pid_file

    def control(self) -> Control:
        """Return the daemon that holds our pid file's lock. With --pid-file the configuration need not be readable."""
        return Control(needed(self.pid_path(), "pid_file", self))

    def upgrade_command(self) -> ExecCommand:
        """Return the command that a binary upgrade executes: this daemon in the foreground, from any folder."""
        program = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]
        if Path(program[-1]).is_file():
            program[-1] = str(Path(program[-1]).absolute())
        options = ["-c", str(self.config)]
        if self.environment is not None:
            options += ["-e", self.environment]
        if self.pid_file is not None:
            options += ["--pid-file", str(self.pid_file)]
        for name, values in (("-I", self.include), ("-r", self.require), ("--types", self.types)):
            options += [word for value in values for word in (name, value)]
        if self.background:
            options.append("--background")
        return ExecCommand((*program, *options, "run", *self.app), Path("/"))


def needed(value: T | None, key: str, invocation: Invocation) -> T:
    """Return a setting that running in the background needs. Raises ConfigError when it is not there."""
    if value is None:
        example = {"pid_file": "psched.pid", "log": "psched.log"}[key]
        raise ConfigError(f'{invocation.config}: {key}: missing; a daemon needs one, such as "{key}: {example}"')
    return value


def log_path(invocation: Invocation) -> Path:
    """Return the log file of a daemon in the background. Raises ConfigError when it is not configured."""
    return needed(invocation.settings().log, "log", invocation)


def start(invocation: Invocation) -> int:
    """Run the daemon in the background; done when its workers are up, or when it runs already."""
    log = log_path(invocation)
    try:
        pid_file = PidFile.acquire(invocation.control().pid_file)
    except AlreadyRunningError as error:
        click.echo(f"pschedd is {error}")
        return DONE
    written = size_of(log)
    outcome = detach(
        lambda ready: serve(replace(invocation, background=True), pid_file, ready),
        [pid_file.descriptor],
        invocation.timeout,
    )
    pid_file.close()
    if outcome.ready:
        pid, report = invocation.control().report()
        click.echo(f"pschedd has started (pid {pid})")
        _print_troubles(report)
        return DONE
    _print_failed_start(outcome, log, written, invocation.timeout)
    return FAILED


def _print_failed_start(outcome: Outcome, log: Path, written: int, timeout: float | None) -> None:
    """Print why a start failed. A reason that the daemon reported is not in its log."""
    if outcome.died and outcome.reason:
        click.echo(f"pschedd did not start: {outcome.reason}", err=True)
        return
    if outcome.died:
        click.echo(f"pschedd did not start; the end of {log}:", err=True)
    else:
        hint = "it goes on trying (see pschedd status); the end of"
        click.echo(f"pschedd has not started within {timeout:g} s; {hint} {log}:", err=True)
    _print_lines(log_end(log, written))


def _print_troubles(report: MasterStatus) -> None:
    """Print the troubles of workers that are up but cannot work yet."""
    for trouble in report.troubles:
        click.echo(f"pschedd: warning: the workers are up, but cannot work yet: {trouble}", err=True)


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(f"  {line}", err=True)


def run(invocation: Invocation) -> int:
    """Be the daemon, in the foreground; also called by a binary upgrade. Holds the pid file, if one is configured."""
    path = invocation.pid_path()
    return serve(invocation, None if path is None else hold_pid_file(path, os.environ), lambda: None)


def serve(invocation: Invocation, pid_file: PidFile | None, ready: Callable[[], None]) -> int:
    """Be the master, as the configured user, and return its exit code. `ready` is called when the workers are up."""
    settings = invocation.settings()
    identity = Identity.look_up(settings.user, settings.group)
    if identity is not None:
        if pid_file is not None:
            pid_file.give_to(identity.uid, identity.gid)
        identity.assume()
    options = RunOptions(pid_file, ready, invocation.background, invocation.upgrade_command())
    return run_master(None, invocation.settings, options)


def stop(invocation: Invocation) -> int:
    """Stop the daemon and wait until it has ended. Succeeds when none runs."""
    control = invocation.control()
    pid = control.send(signal.SIGQUIT if invocation.immediate else signal.SIGTERM)
    if pid is None:
        remove_unused(control.pid_file)
        click.echo("pschedd is not running")
        return DONE
    if control.wait(lambda now: now != pid and has_ended(pid), invocation.timeout, click.echo):
        remove_unused(control.pid_file)
        click.echo(f"pschedd has stopped (pid {pid})")
        return DONE
    busy = "; ".join(running(pid)) or "nothing, it is leaving"
    click.echo(f"pschedd still runs after {invocation.timeout:g} s (pid {pid}): {busy}", err=True)
    return FAILED


def restart(invocation: Invocation) -> int:
    """Stop and start; a configuration that cannot be read leaves the running daemon alone."""
    log_path(invocation)
    return stop(invocation) or start(invocation)


def reload(invocation: Invocation) -> int:
    """Make the daemon reload configuration and code, and wait until it has accepted or refused them."""
    control = invocation.control()
    number = signal.SIGHUP if invocation.immediate else signal.SIGUSR1
    limit = _RELOAD_TIMEOUT if invocation.timeout is None else invocation.timeout
    asked = _request(control, number, attrgetter("reload"), limit)
    if asked is None:
        click.echo("pschedd is not running", err=True)
        return NOT_RUNNING
    pid, now, outcome = asked
    if outcome is not None and outcome.refusal is None:
        click.echo(f"pschedd has reloaded (pid {pid})")
        return DONE
    if outcome is not None:
        click.echo(f"pschedd was not reloaded (pid {pid} goes on as it was): {outcome.refusal}", err=True)
    elif now is None:
        click.echo(f"pschedd ended before it had reloaded (pid {pid})", err=True)
    elif now != pid:
        click.echo(f"pschedd was replaced meanwhile (pid {pid} → {now}); reload again", err=True)
    else:
        click.echo(f"pschedd has not reloaded within {limit:g} s (pid {pid}); see its log", err=True)
    return FAILED


def reopen_logs(invocation: Invocation) -> int:
    pid = invocation.control().send(signal.SIGUSR2)
    if pid is None:
        click.echo("pschedd is not running", err=True)
        return NOT_RUNNING
    click.echo(f"pschedd is reopening its logs (pid {pid})")
    return DONE


def upgrade(invocation: Invocation) -> int:
    """Replace the master and wait until the new one has taken over the pid file."""
    control = invocation.control()
    new_log_lines = _new_log_lines(invocation)
    number = UPGRADE_NOW if invocation.immediate else signal.SIGWINCH
    limit = _UPGRADE_TIMEOUT if invocation.timeout is None else invocation.timeout
    asked = _request(control, number, attrgetter("upgrade"), limit)
    if asked is None:
        click.echo("pschedd is not running", err=True)
        return NOT_RUNNING
    pid, now, outcome = asked
    if now not in (None, pid):
        click.echo(f"pschedd was replaced (pid {pid} → {now})")
        _print_troubles(control.report()[1])
        return DONE
    if outcome is not None:
        click.echo(f"pschedd was not replaced (pid {pid} goes on): {outcome.refusal}", err=True)
        _print_lines(new_log_lines())
    elif now is None:
        click.echo(f"pschedd ended before it was replaced (pid {pid})", err=True)
    else:
        click.echo(f"pschedd was not replaced within {limit:g} s (pid {pid} goes on); see its log", err=True)
    return FAILED


def _request(
    control: Control, number: int, requests: Callable[[MasterStatus], RequestStatus], limit: float
) -> tuple[int, int | None, RequestStatus | None] | None:
    """Signal the master and wait at most `limit` seconds for the outcome of the request.

    Returns its pid, the pid of the master that runs then, and the outcome, if there is one; None when no master runs.
    """
    before, report = control.report()
    begun = requests(report).begun
    pid = control.send(number)
    if pid is None:
        return None
    begun = begun if pid == before else 0
    found: list[tuple[int | None, RequestStatus]] = []

    def is_over(_: int | None) -> bool:
        now, report = control.report()
        found[:] = [(now, requests(report))]
        return now != pid or requests(report).ended > begun

    over = control.wait(is_over, limit, lambda words: None)
    now, outcome = found[-1]
    return pid, now, outcome if over and now == pid else None


def _new_log_lines(invocation: Invocation) -> Callable[[], list[str]]:
    """Return a function that reads the last lines logged since now; it returns none when the log is not known."""
    try:
        log = invocation.settings().log
    except ConfigError:  # with --pid-file the configuration of the daemon may be elsewhere
        log = None
    if log is None:
        return list
    written = size_of(log)
    return lambda: log_end(log, written)


def status(invocation: Invocation) -> int:
    """Print whether the daemon runs, its workers and their tasks, and its troubles."""
    control = invocation.control()
    pid, report = control.report()
    if pid is not None:
        click.echo(f"pschedd is running (pid {pid})")
        for worker in workers(pid, report.pending):
            click.echo(f"  {worker}")
        for trouble in report.troubles:
            click.echo(f"  trouble: {trouble}")
        return DONE
    if is_stale(control.pid_file):
        click.echo(f"pschedd died; {control.pid_file} is left of it")
        return DIED
    click.echo("pschedd is not running")
    return STOPPED


_PAUSE = 0.1
_TAIL = 16384


@dataclass(frozen=True, slots=True)
class Control:
    """The daemon that holds the lock of `pid_file`."""

    pid_file: Path

    def pid(self) -> int | None:
        """Return its master's process id, or None when none runs. Raises PidFileError."""
        return read_running(self.pid_file)

    def report(self) -> tuple[int | None, MasterStatus]:
        """Return its master's process id, and what that reports. Raises PidFileError."""
        pid, line = read_report(self.pid_file)
        return pid, MasterStatus.parse(line)

    def send(self, number: int) -> int | None:
        """Signal the master and return its pid, or None when none runs. Raises PermissionError, PidFileError."""
        return signal_running(self.pid_file, number)

    def wait(self, until: Callable[[int | None], bool], timeout: float | None, echo: Callable[[str], None]) -> bool:
        """Wait until `until(pid)`; False when `timeout` seconds (None: no limit) pass first.

        The running tasks are printed by `echo` each time they change.
        """
        start = time.monotonic()
        printed: list[str] = []
        while not until(pid := self.pid()):
            waited = time.monotonic() - start
            if timeout is not None and waited >= timeout:
                return False
            if waited > 1 and pid is not None and (busy := running(pid)) != printed:
                printed = busy
                echo(f"waiting for: {'; '.join(busy) or 'the workers to leave'}")
            time.sleep(_PAUSE)
        return True


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def workers(pid: int, pending: Sequence[PendingWorker] = ()) -> list[str]:
    """Return a line for each worker of the master, from its process title: "worker 2 running s1 (pid 4711)".

    `pending`: the workers being started or awaited; each has a line, whether or not its process exists.
    """
    awaited = {worker.number: worker for worker in pending}
    lines = {number: worker.text(monotonic()) for number, worker in awaited.items()}
    for number, title, child in _titles(pid):
        lines[number] = f"{title} (pid {child}){awaited[number].history if number in awaited else ''}"
    return [line for _, line in sorted(lines.items())]


def running(pid: int) -> list[str]:
    return [worker for worker in workers(pid) if " running " in worker]


def _titles(pid: int) -> list[tuple[int, str, int]]:
    """Return the number, the title and the pid of each worker of the master."""
    try:
        children = psutil.Process(pid).children()
    except psutil.Error:
        return []
    titles = [(_title(child), child.pid) for child in children]
    return [(int(title.split()[1]), title, child) for title, child in titles if title.startswith("worker ")]


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()).removeprefix("psched: ").strip()
    except psutil.Error:
        return ""  # it has just left


def log_end(path: Path, since: int, lines: int = 10) -> list[str]:
    """Return the last lines of a log among those after its first `since` bytes."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(since if since <= size else 0, size - _TAIL))
            return log.read().decode(errors="replace").splitlines()[-lines:]
    except OSError as error:
        return [f"(cannot read {path}: {error.strerror})"]


def size_of(path: Path) -> int:
    """Return the length of a log in bytes, 0 when it does not exist yet."""
    try:
        return path.stat().st_size
    except OSError:
        return 0

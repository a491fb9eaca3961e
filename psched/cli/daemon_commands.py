"""What each command of pschedd does, and the exit codes of LSB init scripts that it ends with."""

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

from psched.cli.options import lasting
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
"""What `status` says with its exit code, besides DONE."""

_UPGRADE_TIMEOUT = 70.0
_RELOAD_TIMEOUT = 70.0
"""Seconds a command waits: longer than a master gives the new application or master (`Surroundings`)."""

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
    """Whether what is printed goes to the log: after `start`, and when what it started is replaced."""
    app: tuple[str, ...]

    @classmethod
    def resolved(cls, **options: Any) -> Invocation:
        """Return the options with every path absolute, so that they mean the same wherever the daemon is."""
        invocation = cls(**options)
        return replace(
            invocation,
            config=invocation.config.absolute(),
            pid_file=None if invocation.pid_file is None else invocation.pid_file.absolute(),
            include=tuple(str(Path(folder).absolute()) for folder in invocation.include),
            require=tuple(str(Path(name).absolute()) if is_file(name) else name for name in invocation.require),
        )

    def settings(self) -> Settings:
        """Return the configuration with the command line laid over it. Raises ConfigError."""
        settings = lasting(load(self.config, self.environment))
        return settings.with_application(self.app, self.include, self.require, self.types)

    def pid_path(self) -> Path | None:
        """Return where the pid file is, if there is to be one."""
        return self.settings().pid_file if self.pid_file is None else self.pid_file

    def control(self) -> Control:
        """Return the daemon that holds our pid file's lock. With --pid-file the configuration need not be readable."""
        return Control(needed(self.pid_path(), "pid_file", self))

    def again(self) -> ExecCommand:
        """Return what a binary replace executes: this daemon in the foreground, from anywhere."""
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
    """Return where a daemon in the background logs. Raises ConfigError when nothing is configured, or nonsense."""
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
        _warn(report)
        return DONE
    _explain(outcome, log, written, invocation.timeout)
    return FAILED


def _explain(outcome: Outcome, log: Path, written: int, timeout: float | None) -> None:
    """Say how a start went that did not go well. A reason that came back was not logged: the log has no more."""
    if outcome.died and outcome.reason:
        click.echo(f"pschedd did not start: {outcome.reason}", err=True)
        return
    if outcome.died:
        click.echo(f"pschedd did not start; the end of {log}:", err=True)
    else:
        words = "it goes on trying (pschedd status tells how far it is), the end of"
        click.echo(f"pschedd has not started within {timeout:g} s; {words} {log}:", err=True)
    _show(log_end(log, written))


def _warn(report: MasterStatus) -> None:
    """Say what keeps the workers of a daemon that has just come up from working; they go on trying."""
    for trouble in report.troubles:
        click.echo(f"pschedd: warning: the workers are up, but cannot work yet: {trouble}", err=True)


def _show(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(f"  {line}", err=True)


def run(invocation: Invocation) -> int:
    """Be the daemon, in the foreground; also what a binary replace executes. Holds the pid file, if there is one."""
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
    options = RunOptions(pid_file, ready, invocation.background, invocation.again())
    return run_master(None, invocation.settings, options)


def stop(invocation: Invocation) -> int:
    """Stop the daemon and wait until it has ended. Done when none runs."""
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
    """Make the daemon load configuration and code anew, and wait until it has accepted or refused them."""
    control = invocation.control()
    number = signal.SIGHUP if invocation.immediate else signal.SIGUSR1
    limit = _RELOAD_TIMEOUT if invocation.timeout is None else invocation.timeout
    asked = _ask(control, number, attrgetter("reload"), limit)
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
        click.echo(f"pschedd has not reloaded within {limit:g} s (pid {pid}); its log says how far it is", err=True)
    return FAILED


def reopen_logs(invocation: Invocation) -> int:
    """Make the daemon reopen its log files."""
    pid = invocation.control().send(signal.SIGUSR2)
    if pid is None:
        click.echo("pschedd is not running", err=True)
        return NOT_RUNNING
    click.echo(f"pschedd is reopening its logs (pid {pid})")
    return DONE


def upgrade(invocation: Invocation) -> int:
    """Replace the master by a new one and wait until that has taken the pid file over."""
    control = invocation.control()
    news = _news(invocation)
    number = UPGRADE_NOW if invocation.immediate else signal.SIGWINCH
    limit = _UPGRADE_TIMEOUT if invocation.timeout is None else invocation.timeout
    asked = _ask(control, number, attrgetter("upgrade"), limit)
    if asked is None:
        click.echo("pschedd is not running", err=True)
        return NOT_RUNNING
    pid, now, outcome = asked
    if now not in (None, pid):
        click.echo(f"pschedd was replaced (pid {pid} → {now})")
        _warn(control.report()[1])
        return DONE
    if outcome is not None:
        click.echo(f"pschedd was not replaced (pid {pid} goes on): {outcome.refusal}", err=True)
        _show(news())
    elif now is None:
        click.echo(f"pschedd ended before it was replaced (pid {pid})", err=True)
    else:
        click.echo(f"pschedd was not replaced within {limit:g} s (pid {pid} goes on); its log says why", err=True)
    return FAILED


def _ask(
    control: Control, number: int, requests: Callable[[MasterStatus], RequestStatus], limit: float
) -> tuple[int, int | None, RequestStatus | None] | None:
    """Signal the master and wait for `limit` seconds at the most for the outcome of what it is asked for.

    Returns its pid, the pid of the master there is then, and the outcome, if there is one; None when none runs.
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


def _news(invocation: Invocation) -> Callable[[], list[str]]:
    """Return what gives the last lines that the daemon has logged since now; none when its log is not known here."""
    try:
        log = invocation.settings().log
    except ConfigError:  # with --pid-file the configuration of the daemon may be elsewhere
        log = None
    if log is None:
        return list
    written = size_of(log)
    return lambda: log_end(log, written)


def status(invocation: Invocation) -> int:
    """Say whether the daemon runs, what its workers do, and what keeps them from it."""
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

    def wait(self, until: Callable[[int | None], bool], timeout: float | None, tell: Callable[[str], None]) -> bool:
        """Wait until `until(pid)`; False when `timeout` seconds (None: no limit) pass first.

        What the children run is told each time it changes, so that nobody wonders what a stop is waiting for.
        """
        start = time.monotonic()
        told: list[str] = []
        while not until(pid := self.pid()):
            waited = time.monotonic() - start
            if timeout is not None and waited >= timeout:
                return False
            if waited > 1 and pid is not None and (busy := running(pid)) != told:
                told = busy
                tell(f"waiting for: {'; '.join(busy) or 'the workers to leave'}")
            time.sleep(_PAUSE)
        return True


def has_ended(pid: int) -> bool:
    """Tell whether a process is gone, or waits for nothing but its parent's notice."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def workers(pid: int, pending: Sequence[PendingWorker] = ()) -> list[str]:
    """Return what each child of the master says of itself in its title: "worker 2 running s1 (pid 4711)".

    `pending`: the slots whose next worker is not at work yet; each has a line, whether there is a process or not.
    """
    awaited = {worker.number: worker for worker in pending}
    lines = {number: worker.text(monotonic()) for number, worker in awaited.items()}
    for number, title, child in _titles(pid):
        lines[number] = f"{title} (pid {child}){awaited[number].history if number in awaited else ''}"
    return [line for _, line in sorted(lines.items())]


def running(pid: int) -> list[str]:
    """Return those of `workers` that run a task."""
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
    """Return the last lines that were written to a log after it was `since` bytes long."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(since if since <= size else 0, size - _TAIL))
            return log.read().decode(errors="replace").splitlines()[-lines:]
    except OSError as error:
        return [f"(cannot read {path}: {error.strerror})"]


def size_of(path: Path) -> int:
    """Return the length of a log in bytes, 0 when there is none yet."""
    try:
        return path.stat().st_size
    except OSError:
        return 0

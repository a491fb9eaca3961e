"""pschedd: the daemon's commands.

`start` and `run` become the master. The other commands send signals to the running master.
"""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import click
import psutil

from psched.cli.errors import FAILED, print_error, run_command
from psched.cli.formatting import fields_of
from psched.cli.option_types import seconds
from psched.cli.options import CONFIG, ENVIRONMENT, INCLUDE, JSON, REQUIRE, TYPES, Chosen, pass_chosen
from psched.cli.pschedd_status_json import print_status
from psched.clock import monotonic, wait_steps
from psched.config import Settings, default_environment
from psched.error_messages import ESCAPES
from psched.errors import ConfigError
from psched.process.journal import write_error
from psched.process.signals import UPGRADE_NOW
from psched.supervisor.binary_upgrade import ExecCommand, hold_pid_file
from psched.supervisor.daemonize import Identity, Outcome, detach
from psched.supervisor.master_status import MasterStatus, PendingWorker, RequestStatus
from psched.supervisor.pidfile import (
    AlreadyRunningError,
    PidFile,
    PidFileError,
    is_stale,
    read_report,
    read_running,
    remove_unused,
    signal_running,
)
from psched.supervisor.run_master import ROOT_WARNING, run_master
from psched.supervisor.running_masters import is_title, master_title, running_masters, title_of

DONE = 0
NOT_PERMITTED = 4
NOT_CONFIGURED = 6
NOT_RUNNING = 7
"""Exit codes of LSB init scripts: DONE, FAILED, NOT_PERMITTED, NOT_CONFIGURED and NOT_RUNNING."""

DIED = 1
STOPPED = 3
UNKNOWN = 4
"""Exit codes of `status`: DONE (the daemon is running), DIED, STOPPED and UNKNOWN."""

_REQUEST_TIMEOUT = 70.0
"""How many seconds `reload` and `upgrade` wait for the master. The master's own limits (`run_master`) are shorter."""
_PAUSE = 0.1
_TAIL_BYTES = 16384
_TAIL_LINES = 10
_ONE_EACH = "each configuration needs its own pid_file"


class NotRunningError(Exception):
    """There is no running master."""


class NoPidFileError(ConfigError):
    """The configuration names no pid file."""


@dataclass(frozen=True, kw_only=True)
class Invocation(Chosen):
    pid_file: Path | None
    immediate: bool
    timeout: float | None
    background: bool
    """Whether output goes to the log, as after `start`. An upgrade passes the value to the new master."""
    app: tuple[str, ...]

    def configured(self) -> Settings:
        return self.settings(app=self.app)

    def configured_path(self, key: Literal["pid_file", "log"]) -> Path:
        """Return a path of the configuration. Raises ConfigError if the configuration does not have the key."""
        path: Path | None = getattr(self.configured(), key)
        if path is None:
            problem = f'{self.file}: {key}: missing; a daemon needs it, for example "{key}: psched.{key[:3]}"'
            raise NoPidFileError(problem) if key == "pid_file" else ConfigError(problem)
        return path

    def new_pid_path(self) -> Path:
        return self.configured_path("pid_file") if self.pid_file is None else self.pid_file

    def pid_path(self) -> Path:
        """Return the pid file of the running daemon.

        With --pid-file, the configuration need not be readable, and the daemon may use any configuration. Without
        --pid-file, raises PidFileError if a daemon of another configuration holds the file.
        """
        path = self.new_pid_path()
        if not path.name:  # files beside it (`NAME.metrics`) could not be named
            raise PidFileError(f"pid file {path} is not a regular file; name another one (pid_file)")
        if self.pid_file is None:
            self.check_daemon(path, read_running(path), "to signal that daemon, use --pid-file instead of -c and -e")
        return path

    def metrics_path(self, pid_file: Path) -> Path | None:
        """Return the file of counters of the daemon with this pid file.

        If the configuration cannot be read and --pid-file is given, return the file beside the pid file.
        """
        try:
            return self.configured().metrics_path(pid_file)
        except ConfigError:
            if self.pid_file is None:
                raise
        return pid_file.with_name(f"{pid_file.name}.metrics")

    def check_daemon(self, pid_file: Path, pid: int | None, remedy: str) -> None:
        """Raise PidFileError if the process `pid` is the master of another configuration."""
        found = None if pid is None else title_of(pid)
        if found is not None and not is_title(self.title, found):
            held = f"pid file {pid_file} is held by another daemon, {found} (pid {pid})"
            raise PidFileError(f"{held}, not by the daemon of {self.title}; {remedy}")

    @property
    def title(self) -> str:
        """The process title of the master of this configuration. The configuration need not be readable."""
        return master_title(default_environment() if self.environment is None else self.environment, self.file)

    def other_pid_files(self) -> list[Path]:
        """Return the pid files of running daemons of this configuration."""
        return [master.pid_file for master in running_masters(self.title) if master.pid_file is not None]

    @property
    def request_timeout(self) -> float:
        return _REQUEST_TIMEOUT if self.timeout is None else self.timeout

    def upgrade_command(self) -> ExecCommand:
        """Return the command that runs this daemon again, in the foreground and from any folder."""
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


def start(invocation: Invocation) -> int:
    log = LogTail(invocation.configured_path("log"))
    path = invocation.new_pid_path()
    try:
        pid_file = PidFile.acquire(path)
    except AlreadyRunningError as error:
        invocation.check_daemon(path, error.pid, _ONE_EACH)
        click.echo(f"pschedd is {error}")
        return DONE
    daemon = replace(invocation, background=True)
    outcome = detach(partial(serve, daemon, pid_file), [pid_file.descriptor], invocation.timeout)
    pid_file.close()
    if not outcome.ready:
        _print_failed_start(outcome, log, invocation.timeout)
        return FAILED
    pid, status = read_status(pid_file.path)
    click.echo(f"pschedd has started (pid {pid})")
    if os.geteuid() == 0 and invocation.configured().user is None:
        click.echo(f"pschedd: warning: {ROOT_WARNING}", err=True)
    _print_troubles(status)
    return DONE


def _print_failed_start(outcome: Outcome, log: LogTail, timeout: float | None) -> None:
    """Print why the daemon did not start: the reason that it reported, or else the end of its log."""
    if outcome.reason:
        place = f"; its log is {log.path}" if log.path is not None and log.path.exists() else ""
        click.echo(f"pschedd did not start: {outcome.reason}{place}", err=True)
    elif outcome.died:
        click.echo(f"pschedd did not start; the end of its log {log.path}:", err=True)
        log.print()
    else:
        hint = "pschedd is still trying (see pschedd status); the end of its log"
        click.echo(f"pschedd has not started within {timeout:g} s; {hint} {log.path}:", err=True)
        log.print()


def _print_troubles(status: MasterStatus) -> None:
    for trouble in status.troubles:
        click.echo(f"pschedd: warning: the workers are running, but cannot work yet: {trouble}", err=True)


def run(invocation: Invocation) -> int:
    """Run the master in the foreground. A binary upgrade also calls this function."""
    path = invocation.configured().pid_file if invocation.pid_file is None else invocation.pid_file
    try:
        pid_file = None if path is None else hold_pid_file(path)
    except AlreadyRunningError as error:
        invocation.check_daemon(error.path, error.pid, _ONE_EACH)
        raise
    return serve(invocation, pid_file, lambda: None, lambda reason: None)


def serve(
    invocation: Invocation, pid_file: PidFile | None, ready: Callable[[], None], failed: Callable[[str], None]
) -> int:
    settings = invocation.configured()
    identity = Identity.look_up(settings.user, settings.group)
    if identity is not None:
        if pid_file is not None:
            pid_file.give_to(identity.uid, identity.gid)
        identity.assume()
    return run_master(
        None,
        invocation.configured,
        pid_file=pid_file,
        ready=ready,
        failed=failed,
        background=invocation.background,
        command=invocation.upgrade_command(),
    )


def stop(invocation: Invocation) -> int:
    path = invocation.pid_path()
    pid = signal_running(path, signal.SIGQUIT if invocation.immediate else signal.SIGTERM)
    if pid is None:
        remove_unused(path)
        click.echo(_not_running(invocation))
        return DONE
    printed: list[str] = []
    limit = math.inf if invocation.timeout is None else invocation.timeout
    for waited in wait_steps(limit, _PAUSE):
        now = read_running(path)
        if now != pid and has_ended(pid):
            remove_unused(path)
            click.echo(f"pschedd has stopped (pid {pid})")
            return DONE
        if waited > 1 and now is not None and (busy := running(now)) != printed:
            printed = busy
            click.echo(f"waiting for: {'; '.join(busy) or 'the workers to exit'}")
    left = "; ".join(running(pid)) or "no task is running; the master is exiting"
    click.echo(f"pschedd is still running after {limit:g} s (pid {pid}): {left}", err=True)
    return FAILED


def restart(invocation: Invocation) -> int:
    """Stop the daemon, then start it. If the configuration cannot be read, the running daemon is left alone."""
    invocation.configured_path("log")
    return stop(invocation) or start(invocation)


def reload(invocation: Invocation) -> int:
    number = signal.SIGHUP if invocation.immediate else signal.SIGUSR1
    pid, now, outcome = _request(invocation, number, lambda status: status.reload)
    if outcome is not None and outcome.refusal is None:
        click.echo(f"pschedd has reloaded (pid {pid})")
        return DONE
    if outcome is not None:
        failure = f"was not reloaded (pid {pid} continues unchanged): {outcome.refusal}"
    elif now is None:
        failure = f"ended before the reload was done (pid {pid})"
    elif now != pid:
        failure = f"was replaced during the reload (pid {pid} → {now}); reload again"
    else:
        failure = f"has not reloaded within {invocation.request_timeout:g} s (pid {pid}); see its log"
    write_error(f"pschedd {failure}")
    return FAILED


def reopen_logs(invocation: Invocation) -> int:
    pid = _signal_master(invocation.pid_path(), signal.SIGUSR2)
    click.echo(f"pschedd is reopening its logs (pid {pid})")
    return DONE


def upgrade(invocation: Invocation) -> int:
    log = LogTail(None)
    with suppress(ConfigError):  # with --pid-file, this configuration may not be the daemon's
        log = LogTail(invocation.configured().log)
    number = UPGRADE_NOW if invocation.immediate else signal.SIGWINCH
    pid, now, outcome = _request(invocation, number, lambda status: status.upgrade)
    if now not in (None, pid):
        click.echo(f"pschedd was replaced (pid {pid} → {now})")
        _print_troubles(read_status(invocation.pid_path())[1])
        return DONE
    if outcome is not None:
        click.echo(f"pschedd was not replaced (pid {pid} continues): {outcome.refusal}", err=True)
        log.print()
    elif now is None:
        click.echo(f"pschedd ended before it was replaced (pid {pid})", err=True)
    else:
        limit = invocation.request_timeout
        click.echo(f"pschedd was not replaced within {limit:g} s (pid {pid} continues); see its log", err=True)
    return FAILED


def _request(
    invocation: Invocation, number: int, requests: Callable[[MasterStatus], RequestStatus]
) -> tuple[int, int | None, RequestStatus | None]:
    """Signal the master, and wait up to `request_timeout` until it has carried out the request.

    Return the pid of this master, the pid of the master that runs afterwards, and the outcome of the request. The
    second pid is None if no master runs. The outcome is None if it is unknown.
    """
    path = invocation.pid_path()
    before, status = read_status(path)
    pid = _signal_master(path, number)
    begun = requests(status).begun if pid == before else 0
    for _ in wait_steps(invocation.request_timeout, _PAUSE):
        now, status = read_status(path)
        if now != pid:
            return pid, now, None
        if requests(status).ended > begun:
            return pid, now, requests(status)
    return pid, pid, None


def _signal_master(pid_file: Path, number: int) -> int:
    """Signal the running master and return its pid. Raises NotRunningError."""
    pid = signal_running(pid_file, number)
    if pid is None:
        raise NotRunningError
    return pid


def status(invocation: Invocation) -> int:
    path = invocation.pid_path()
    if invocation.json:
        return print_status(path, invocation.metrics_path(path))
    pid, found = read_status(path)
    if pid is not None:
        click.echo(f"pschedd is running (pid {pid})")
        for worker in workers(pid, found.pending):
            click.echo(f"  {worker}")
        for trouble in found.troubles:
            click.echo(f"  trouble: {trouble}")
        return DONE
    if is_stale(path):
        click.echo(f"pschedd died; its pid file {path} remains")
        return DIED
    click.echo(_not_running(invocation))
    return STOPPED


def _not_running(invocation: Invocation) -> str:
    """Return the message that the daemon is not running.

    The message names daemons of this configuration that were started with another pid file.
    """
    others = "".join(
        f"; a daemon of this configuration runs with --pid-file {path}" for path in invocation.other_pid_files()
    )
    return f"pschedd is not running{others}"


def read_status(pid_file: Path) -> tuple[int | None, MasterStatus]:
    pid, line = read_report(pid_file)
    return pid, MasterStatus.parse(line)


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def workers(pid: int, pending: Sequence[PendingWorker] = ()) -> list[str]:
    """Return a line for each worker of the master, such as "worker 2 running s1 (pid 4711)".

    The lines come from process titles. `pending`: workers that are not up yet; each gets a line, even if it has no
    process yet.
    """
    awaited = {worker.number: worker for worker in pending}
    lines = {number: worker.text(monotonic()) for number, worker in awaited.items()}
    children: list[psutil.Process] = []
    with suppress(psutil.Error):  # the master has ended
        children = psutil.Process(pid).children()
    for child in children:
        with suppress(psutil.Error):  # the worker has ended
            title = " ".join(child.cmdline()).removeprefix("psched: ").strip()
            if title.startswith("worker "):
                number = int(title.split()[1])
                lines[number] = f"{title} (pid {child.pid}){awaited[number].history if number in awaited else ''}"
    return [line for _, line in sorted(lines.items())]


def running(pid: int) -> list[str]:
    return [worker for worker in workers(pid) if " running " in worker]


class LogTail:
    """The last lines that are appended to a log after this object was made. Without a `path` there are no lines."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._begin = 0
        with suppress(OSError):  # the log does not exist yet
            self._begin = 0 if path is None else path.stat().st_size

    def print(self) -> None:
        if self.path is None:
            return
        try:
            with self.path.open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(self._begin if self._begin <= size else 0, size - _TAIL_BYTES))
                lines = log.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]
        except OSError as error:
            lines = [f"(cannot read {self.path}: {error.strerror})"]
        for line in lines:
            click.echo(f"  {line}", err=True)


_ACTIONS: dict[str, Callable[[Invocation], int]] = {
    action.__name__.replace("_", "-"): action
    for action in (start, stop, restart, reload, reopen_logs, upgrade, status, run)
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="psched", prog_name="pschedd")
@ENVIRONMENT
@CONFIG
@INCLUDE
@REQUIRE
@TYPES
@JSON
@click.option("--pid-file", type=click.Path(path_type=Path), help="Use this pid file instead of the configured one.")
@click.option("--immediate", is_flag=True, help="Do not wait for running tasks: release them.")
@click.option(
    "--timeout",
    type=seconds(),
    help="Wait at most SEC seconds (or 90s, 5m) for the outcome; after that, exit with 1.",
)
@click.option("--background", is_flag=True, hidden=True)  # a binary upgrade passes this if `start` started the daemon
@click.argument("action", type=click.Choice(list(_ACTIONS)), metavar="ACTION")
@click.argument("app", nargs=-1)
@pass_chosen
def pschedd(chosen: Chosen, /, action: str, pid_file: Path | None, **options: Any) -> int:
    """Control the psched daemon, or run it in the foreground.

    \b
    start        run in the background; return when the workers are up
    stop         stop when the running tasks are done (--immediate: now)
    restart      stop, then start
    reload       load configuration and code again (each worker after its task); fail if that is impossible
    upgrade      replace the master by a new process, also with a new version of Python
    reopen-logs  open the log files again, after logrotate has moved them
    status       show the workers and their problems (--json: for probes, quickest with --pid-file);
                 exit code 0: running, 1: died, 3: not running, 4: unknown
    run          run in the foreground

    APP is the application to run, module:NAME, instead of `app` of the configuration.
    """  # noqa: D301 – click's mark of a paragraph that is not to be wrapped
    path = None if pid_file is None else pid_file.absolute()
    if chosen.json and action != "status":
        raise click.UsageError(f"--json works only with status, not with {action}")
    invocation = Invocation(**fields_of(chosen.absolute()), pid_file=path, **options)
    try:
        return _ACTIONS[action](invocation)
    except NotRunningError:
        click.echo(_not_running(invocation), err=True)
        return NOT_RUNNING
    except ConfigError as error:
        lacks_pid_file = isinstance(error, NoPidFileError) and action in ("reload", "upgrade")
        hints = []
        if lacks_pid_file or action in ("stop", "status", "reopen-logs"):
            paths = invocation.other_pid_files() or [Path("PATH")]
            named = [str(path).translate(ESCAPES) for path in paths]
            hints = [f"\nuntil this is fixed, use: pschedd {action} --pid-file {path}" for path in named]
        code, message = NOT_CONFIGURED, f"{error}{''.join(hints)}"
    except PermissionError as error:
        code, message = NOT_PERMITTED, f"{error.strerror}: the daemon belongs to another user; try again as root"
    except PidFileError as error:
        code, message = (
            NOT_PERMITTED if isinstance(error.__cause__, PermissionError) else FAILED,
            str(error).translate(ESCAPES),
        )
    print_error("pschedd", message)
    return UNKNOWN if action == "status" else code


main = partial(run_command, pschedd)


if __name__ == "__main__":
    sys.exit(main())

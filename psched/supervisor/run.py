"""Running an application: as a command, as a daemon, or by `Worker.run` in a program of one's own. In the master."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from selectors import BaseSelector, DefaultSelector

from setproctitle import setproctitle

from psched.application import ApplicationSpec
from psched.config import Settings
from psched.config.validators import seconds
from psched.cron import tz_database
from psched.errors import ConfigError
from psched.process.channel import DONE
from psched.process.linux import adopt_orphans
from psched.process.logs import Log, begin_logging
from psched.process.signals import VERBS, SignalQueue
from psched.supervisor.binary_upgrade import BinaryUpgrade, ExecCommand, UpgradeHandoff
from psched.supervisor.daemonize import Terminal
from psched.supervisor.event_loop import run_loop
from psched.supervisor.forking import ProcessTable
from psched.supervisor.pidfile import PidFile
from psched.supervisor.preload import preload
from psched.supervisor.reload import Reload, config_loader
from psched.supervisor.supervisor import Supervisor
from psched.supervisor.systemd import Notifier, SystemdReporter

log = logging.getLogger(__name__)

_FAILED = 1
_STOP_TIMEOUT = "PSCHED_STOP_TIMEOUT"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a master is started with, besides its configuration.

    `pid_file`: the lock it holds (`replacement.hold_pid_file`), held until this process ends. `ready`: called when
    the children are up. `background`: what the process prints goes to the log. `command`: how to start it once more
    for a binary replace (None: as this process was started). `probe_limit` and `replace_limit`: seconds that loading
    the application at a restart, and a new master at a binary replace may take.
    """

    pid_file: PidFile | None = None
    ready: Callable[[], None] = lambda: None
    background: bool = False
    command: ExecCommand | None = None
    probe_limit: float = 60.0
    replace_limit: float = 60.0


def run(
    application: ApplicationSpec | None, load_config: Callable[[], Settings], surroundings: RunOptions | None = None
) -> int:
    """Be the master until it is told to stop; returns the exit code: 0, or 1 when nothing could be started.

    `application` None: what the configuration names. `load_config` is called now and at every restart. Call it in the
    main thread, with no other thread running, and no database connection open. Raises ConfigError when the
    configuration cannot be used, or its log or drivers are not there.

    $PSCHED_STOP_TIMEOUT: seconds after which whoever sends TERM is going to kill us. Some seconds before, running tasks
    are told to stop, and given back.
    """
    around = RunOptions() if surroundings is None else surroundings
    command = ExecCommand.same_again() if around.command is None else around.command
    notifier = Notifier.from_environment(os.environ)
    handoff = UpgradeHandoff.claim(os.environ)
    stop_timeout = _stop_timeout(os.environ)
    terminal = Terminal()
    make_plan = config_loader(load_config, application)
    plan = make_plan()
    preload(plan.settings)
    log_file = Log(plan.settings.log, around.background)
    begin_logging(log_file)
    log.info("starting; tz database %s", tz_database())
    setproctitle(f"psched: master [{plan.settings.environment}]")
    with DefaultSelector() as selector:
        binary_upgrade = BinaryUpgrade(selector, command, around.pid_file, handoff, notifier, around.replace_limit)
        signals = SignalQueue()
        process_table = ProcessTable(selector, signals, binary_upgrade.disown, binary_upgrade.processes)
        restart = Reload(make_plan, process_table, log_file, around.probe_limit)
        reporter = SystemdReporter(notifier, around.ready)
        supervisor = Supervisor(plan, process_table, log_file, restart, binary_upgrade, reporter, terminal)
        supervisor.stop_timeout = stop_timeout
        return _supervise(selector, signals, supervisor)


def _stop_timeout(environ: Mapping[str, str]) -> float:
    """Return the seconds within which a stop must be over. Raises ConfigError."""
    text = environ.get(_STOP_TIMEOUT, "")
    try:
        found = seconds(0, above=True, never=True)(text or None)
    except ValueError as error:
        raise ConfigError(f"${_STOP_TIMEOUT}: {error}, got {text!r}") from None
    return math.inf if found is None else found


def _supervise(selector: BaseSelector, signals: SignalQueue, supervisor: Supervisor) -> int:
    signals.install(VERBS | {signal.SIGCHLD})
    adopt_orphans(True)
    try:
        supervisor.begin()
        run_loop(selector, signals, supervisor)
    finally:
        adopt_orphans(False)
        supervisor.binary_upgrade.end()
        signals.uninstall()
    if supervisor.failure is not None:
        if not supervisor.log_file.has_stderr:
            sys.stderr.write(f"psched: {supervisor.failure}\n")
        return _FAILED
    log.info("ended")
    return DONE

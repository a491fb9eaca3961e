"""Creates the master and runs it, for `pschedd`, `psched run` and `Worker.run`."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from selectors import DefaultSelector

from setproctitle import setproctitle

from psched.application import ApplicationSpec
from psched.config import Settings
from psched.config.validators import seconds
from psched.cron import tz_database
from psched.errors import ConfigError
from psched.metrics.counter_file import CounterFile, CounterFileError, is_alive, read_counters
from psched.metrics.event_counters import MasterCounter
from psched.metrics.health import node_text
from psched.process import journal
from psched.process.child_protocol import DONE
from psched.process.linux import adopt_orphans
from psched.process.logs import Log, begin_logging
from psched.process.signals import MASTER_SIGNALS, SignalQueue
from psched.supervisor.binary_upgrade import HANDOFF_VARIABLE, BinaryUpgrade, ExecCommand, UpgradeHandoff
from psched.supervisor.fork_and_reap import ProcessTable
from psched.supervisor.loaded_config import LoadedConfig
from psched.supervisor.pidfile import PidFile
from psched.supervisor.reload_dry_run import Reload
from psched.supervisor.running_masters import master_title, title_of
from psched.supervisor.supervisor import Supervisor
from psched.supervisor.systemd import Notifier

log = logging.getLogger(__name__)

ROOT_WARNING = "running as root, and so are all handlers; start as another user, or give user: and start with pschedd"
_FAILED = 1
_STOP_TIMEOUT = "PSCHED_STOP_TIMEOUT"


def run_master(
    application: ApplicationSpec | None,
    load_settings: Callable[[], Settings],
    *,
    pid_file: PidFile | None = None,
    ready: Callable[[], None] = lambda: None,
    failed: Callable[[str], None] = lambda reason: None,
    background: bool = False,
    command: ExecCommand | None = None,
    reload_limit: float = 60.0,
    upgrade_limit: float = 60.0,
) -> int:
    """Run the master until a signal ends it. Return the exit code: 0, or 1 if the start failed.

    Call this in the main thread, with no other thread and no open database connection.

    - `load_settings`: called now and at every reload.
    - `application`: None for the configured application.
    - `pid_file`: held until this process ends.
    - `ready`: called when the children are up. `failed`: called with the reason if the start has failed.
    - `background`: whether the output of the process goes to the log.
    - `command`: starts the program again for a binary upgrade; None: the command that started this process.
    - `reload_limit`: how many seconds loading the application may take.
    - `upgrade_limit`: how many seconds a new master may take to be ready.

    $PSCHED_STOP_TIMEOUT: how many seconds after TERM the sender of TERM will kill the process. Running tasks are
    stopped and released a few seconds before that.

    Raises ConfigError.
    """
    command = ExecCommand(tuple(sys.orig_argv[1:]), Path.cwd()) if command is None else command
    notifier = Notifier.from_environment(os.environ)
    handoff = UpgradeHandoff.from_environment()
    os.environ.pop(HANDOFF_VARIABLE, None)  # so that no child acts as a new master
    stop_timeout = _stop_timeout()
    load_config = partial(LoadedConfig.load, load_settings, application)
    config = load_config()
    log_file = Log(config.settings.log, background, config.settings.log_format == "json")
    begin_logging(log_file)
    log.info("starting; tz database %s", tz_database())
    if os.geteuid() == 0 and config.settings.user != "root":
        log.warning(ROOT_WARNING)
    setproctitle(master_title(config.settings.environment, config.settings.path))
    with DefaultSelector() as selector:
        upgrade = BinaryUpgrade(selector, command, pid_file, handoff, notifier, upgrade_limit)
        signals = SignalQueue()
        path = config.settings.metrics_path(None if pid_file is None else pid_file.path)
        text = node_text(version("psched"), tz_database(), config.settings.child_heartbeat_limit)
        counters = None if path is None else _open_counters(path, text, is_upgrade=handoff is not None)

        def close_in_child() -> None:
            upgrade.close_in_child()
            if counters is not None:
                counters.close_in_child()

        process_table = ProcessTable(selector, signals, log_file, close_in_child, upgrade.processes)
        reload = Reload(load_config, process_table, reload_limit)
        supervisor = Supervisor(config, process_table, reload, upgrade, notifier, ready, counters)
        supervisor.stop_timeout = stop_timeout
        signals.install(MASTER_SIGNALS | {signal.SIGCHLD})
        adopt_orphans(True)
        try:
            supervisor.run(selector, signals)
        finally:
            adopt_orphans(False)
            if counters is not None:
                counters.close()
            upgrade.end()
            signals.uninstall()
    if supervisor.failure is None:
        log.info("ended")
        return DONE
    if not log_file.has_stderr:
        journal.write_error(f"psched: {supervisor.failure}")
    failed(supervisor.failure)
    return _FAILED


def _open_counters(path: Path, text: str, is_upgrade: bool) -> MasterCounter | None:
    """Return the counters of this node.

    If they cannot be kept, log a warning and return None: tasks run nevertheless.
    """
    try:
        if not is_upgrade and (other := _master_of(path)) is not None:
            raise CounterFileError(
                f"{path} belongs to another master, pid {other}; give each master a metrics_file of its own"
            )
        return MasterCounter(CounterFile.create(path, is_upgrade), text)
    except OSError as error:
        log.warning("metrics are not counted: %s: %s (metrics_file)", path, error.strerror)
    except CounterFileError as error:
        log.warning("metrics are not counted: %s", error)
    return None


def _master_of(path: Path) -> int | None:
    """Return the pid of another running master that keeps its counters in this file, or None."""
    with suppress(CounterFileError):
        for each in read_counters(path).processes:
            if each.master != os.getpid() and is_alive(each.master) and title_of(each.master) is not None:
                return each.master
    return None


def _stop_timeout() -> float:
    text = os.environ.get(_STOP_TIMEOUT, "")
    try:
        found = seconds(0, above=True, never=True)(text or None)
    except ValueError as error:
        raise ConfigError(f"${_STOP_TIMEOUT}: {error}, got {text!r}") from None
    return math.inf if found is None else found

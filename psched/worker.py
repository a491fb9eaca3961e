"""Running an application: as a command, as a daemon, or by `Worker.run` in a program of one's own. In the master."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from selectors import BaseSelector, DefaultSelector

from setproctitle import setproctitle

from psched.application import ApplicationSpec
from psched.config import Settings, coerce
from psched.config.checks import seconds
from psched.cron import tz_database
from psched.daemon.engine import run_loop
from psched.daemon.exit_codes import DONE
from psched.daemon.kernel import adopt_orphans
from psched.daemon.logs import Log, begin_logging
from psched.daemon.notify import Notifier
from psched.daemon.nursery import Nursery
from psched.daemon.pidfile import PidFile
from psched.daemon.plan import planner
from psched.daemon.preload import preload
from psched.daemon.replacement import Command, Takeover
from psched.daemon.restart import Restart
from psched.daemon.signals import VERBS, SignalQueue
from psched.daemon.succession import Succession
from psched.daemon.supervisor import Supervisor
from psched.daemon.terminal import Terminal
from psched.daemon.voice import Voice
from psched.errors import ConfigError

log = logging.getLogger(__name__)

_FAILED = 1
_STOP_TIMEOUT = "PSCHED_STOP_TIMEOUT"
Config = Settings | Mapping[str, object] | str | Path


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a master is started with, besides its configuration.

    `pid_file`: the lock it holds (`replacement.hold_pid_file`), held until this process ends. `ready`: called when
    the children are up. `background`: what the process prints goes to the log. `command`: how to start it once more
    for a binary replace (None: as this process was started). `probe_limit` and `replace_limit`: seconds that loading
    the application at a restart, and a new master at a binary replace may take.
    """

    pid_file: PidFile | None = None
    ready: Callable[[], None] = lambda: None
    background: bool = False
    command: Command | None = None
    probe_limit: float = 60.0
    replace_limit: float = 60.0


def run(
    application: ApplicationSpec | None, load_config: Callable[[], Settings], surroundings: Surroundings | None = None
) -> int:
    """Be the master until it is told to stop; returns the exit code: 0, or 1 when nothing could be started.

    `application` None: what the configuration names. `load_config` is called now and at every restart. Call it in the
    main thread, with no other thread running, and no database connection open. Raises ConfigError when the
    configuration cannot be used, or its log or drivers are not there.

    $PSCHED_STOP_TIMEOUT: seconds after which whoever sends TERM is going to kill us. Some seconds before, running tasks
    are told to stop, and given back.
    """
    around = Surroundings() if surroundings is None else surroundings
    command = Command.same_again() if around.command is None else around.command
    notifier = Notifier.from_environment(os.environ)
    takeover = Takeover.claim(os.environ)
    stop_timeout = _stop_timeout(os.environ)
    terminal = Terminal()
    make_plan = planner(load_config, application)
    plan = make_plan()
    preload(plan.settings)
    log_file = Log(plan.settings.log, around.background)
    begin_logging(log_file)
    log.info("starting; tz database %s", tz_database())
    setproctitle(f"psched: master [{plan.settings.environment}]")
    with DefaultSelector() as selector:
        succession = Succession(selector, command, around.pid_file, takeover, notifier, around.replace_limit)
        signals = SignalQueue()
        nursery = Nursery(selector, signals, succession.disown, succession.processes)
        restart = Restart(make_plan, nursery, log_file, around.probe_limit)
        voice = Voice(notifier, around.ready)
        supervisor = Supervisor(plan, nursery, log_file, restart, succession, voice, terminal)
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
        supervisor.succession.end()
        signals.uninstall()
    if supervisor.failure is not None:
        if not supervisor.log_file.has_stderr:
            sys.stderr.write(f"psched: {supervisor.failure}\n")
        return _FAILED
    log.info("ended")
    return DONE


class Worker:
    """The daemon as a function of a program of one's own."""

    @staticmethod
    def run(
        app: str | Sequence[str] | object,
        config_loader: Callable[[], Config],
        include: Sequence[str] = (),
        require: Sequence[str] = (),
    ) -> int:
        """Run `app` until a signal ends it; returns the exit code.

        `app`: "module:NAME", or several, or a Dispatch class or App. Named by a string, its code is renewed at every
        restart; given as an object, by a binary replace only. `config_loader` returns the configuration (a dict,
        Settings, or a path) and is called at every restart. `include` and `require`: as -I and -r. Raises ConfigError.
        """
        names: tuple[object, ...] = tuple(app) if isinstance(app, list | tuple) else (app,)
        return run(ApplicationSpec(names, tuple(include), tuple(require)), lambda: coerce(config_loader()))

"""A child from its birth to its end: load the application, work, leave. In children, and in the probe of a restart."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from setproctitle import setproctitle

from psched.application import Application, ApplicationSpec, load
from psched.child.heartbeat import HeartbeatThread
from psched.child.standby import build
from psched.config import Settings
from psched.errors import ConfigError
from psched.process import channel as pipes
from psched.process.channel import BOOT_FAILED, DONE, ChildPipe
from psched.process.child_spec import ChildSpec
from psched.process.escalation import RELEASE
from psched.process.logs import Log
from psched.process.signals import VERBS, SignalQueue

log = logging.getLogger(__name__)


class ChildRole(Protocol):
    """What a child does once it is up."""

    def prepare(self) -> None:
        """Check what must be there before work can begin. Raises ConfigError."""
        ...

    def run(self) -> None:
        """Work in the main thread until stopped or done."""
        ...

    def stop(self, immediate: bool, grace: float | None = None) -> None:
        """Called from the beating thread, perhaps several times; returns at once."""
        ...

    def running(self) -> str | None:
        """Return what runs, for the process title."""
        ...

    def was_idle(self) -> bool:
        """Tell whether nothing was run since the last call."""
        ...

    def trouble(self) -> str | None:
        """Return what keeps it from working at present, such as a database that does not answer."""
        ...

    def report_suspects(self) -> None:
        """Have the master suspect what has run and is not settled, too."""
        ...


@dataclass(slots=True)
class ChildMain:
    """The child called `name` (it stands in the process title)."""

    name: str
    settings: Settings
    ends: ChildPipe
    log: Log
    _work: ChildRole | None = None
    _left: bool = False
    _title: str = ""
    _trouble: str | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> None:
        """Take signals and beat. Call first, in the main thread."""
        signals = SignalQueue()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signals.install(VERBS)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        AtForkHooks(signals, self.ends).expect()
        settings = self.settings
        longest = settings.child_heartbeat_limit + settings.child_kill_interval + RELEASE
        HeartbeatThread(self.ends, signals, settings.child_heartbeat_interval, longest, self).start()

    def boot(self, make: Callable[[], ChildRole]) -> ChildRole | None:
        """Return the work that `make` makes and prepares, or None after telling the master what is wrong."""
        try:
            run_child = make()
            run_child.prepare()
        except ConfigError as error:
            log.debug("cannot begin", exc_info=True)
            self.ends.say(pipes.WHY, str(error))
        except BaseException as error:
            log.exception("cannot begin")
            self.ends.say(pipes.WHY, f"{type(error).__name__}: {error}")
        else:
            with self._lock:  # an order that finds no work yet ends the process, so it must not come in between
                self._work = run_child
            self.beating()  # first: what troubles it from the beginning is known when it is ready
            self.ends.say(pipes.READY)
            return run_child
        return None

    def stop(self, immediate: bool, grace: float | None = None) -> None:
        """Stop the work; without work nothing is held, and the process just ends."""
        with self._lock:
            run_child = self._work
            if run_child is None:
                self.ends.say(pipes.BYE)
                os._exit(DONE)
        run_child.stop(immediate, grace)

    def reopen(self) -> None:
        """Reopen the log file."""
        self.log.reopen()

    def report_suspects(self) -> None:
        """Have the master suspect what has run and is not settled, too."""
        if self._work is not None:
            self._work.report_suspects()

    def beating(self) -> bool:
        """Keep the process title, and what the master knows, up to date.

        Tells whether nothing was run since the last beat.
        """
        run_child = self._work
        trouble = None if run_child is None else run_child.trouble()
        if trouble != self._trouble:
            self.ends.say(pipes.TROUBLE, trouble or "")
            self._trouble = trouble
        running = None if run_child is None else run_child.running()
        if run_child is None:
            state = "booting"
        elif running is not None:
            state = f"running {running}"
        else:
            state = "idle" if trouble is None else "waiting for the database"
        if state != self._title:
            setproctitle(f"psched: {self.name} {state}")
            self._title = state
        return run_child is not None and run_child.was_idle()

    def leave(self) -> int:
        """Run what was registered to run at exit, say goodbye, and return the exit code."""
        atexit._run_exitfuncs()
        self.ends.say(pipes.BYE)
        return DONE


def run_child(boot: ChildSpec, log_file: Log, ends: ChildPipe) -> int:
    """Be the worker that `boot` describes; returns its exit code."""
    child = ChildMain(f"worker {boot.slot}", boot.settings, ends, log_file)
    pid = os.getpid()
    child.begin()
    labour = child.boot(lambda: build(boot, load(boot.application), ends.say))
    if labour is None:
        return BOOT_FAILED
    labour.run()
    if os.getpid() != pid:
        os._exit(DONE)  # forked by a handler: it must not speak or clean up in our name
    return child.leave()


def dry_run(application: ApplicationSpec, settings: Settings, log_file: Log, ends: ChildPipe) -> int:
    """Load the application and do nothing with it: whether it can be loaded is what the master wants to know."""
    child = ChildMain("probe", settings, ends, log_file)
    child.begin()
    return BOOT_FAILED if child.boot(lambda: _Nothing(load(application))) is None else child.leave()


@dataclass(frozen=True, slots=True)
class _Nothing:
    """The work of a probe."""

    application: Application

    def prepare(self) -> None:
        """Nothing to check."""

    def run(self) -> None:
        """Nothing to do."""

    def stop(self, immediate: bool, grace: float | None = None) -> None:
        """Nothing to stop."""

    def running(self) -> str | None:
        """Nothing runs."""
        return None

    def was_idle(self) -> bool:
        """Nothing ran."""
        return True

    def trouble(self) -> str | None:
        """It does not work."""
        return None

    def report_suspects(self) -> None:
        """Nothing ran."""


@dataclass(eq=False, slots=True)
class AtForkHooks:
    """Makes a stranger of every process that this one forks from now on.

    Our signals are blocked while that happens. One that came to the new process too early would otherwise be written to
    the pipe it still shares with us: it would survive, and we would stop in its stead.
    """

    signals: SignalQueue
    ends: ChildPipe
    _forking: threading.local = field(default_factory=threading.local)

    def expect(self) -> None:
        """Begin. There is no end to it but that of the process."""
        os.register_at_fork(before=self._block, after_in_parent=self._unblock, after_in_child=self._disarm)

    def _block(self) -> None:
        self._forking.before = signal.pthread_sigmask(signal.SIG_BLOCK, VERBS)

    def _unblock(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._forking.before)

    def _disarm(self) -> None:
        self.signals.abandon()
        for number in VERBS:
            signal.signal(number, signal.SIG_DFL)
        self.ends.close()
        self._unblock()

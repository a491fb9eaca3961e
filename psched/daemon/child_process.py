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
from psched.config import Settings
from psched.daemon import pipes
from psched.daemon.beat import Beat
from psched.daemon.boot import Boot
from psched.daemon.child_handle import RELEASE
from psched.daemon.exit_codes import BOOT_FAILED, DONE
from psched.daemon.logs import Log
from psched.daemon.pipes import ChildEnds
from psched.daemon.reserve import build
from psched.daemon.signals import VERBS, SignalQueue
from psched.daemon.strangers import Strangers
from psched.errors import ConfigError

log = logging.getLogger(__name__)


class Work(Protocol):
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

    def rested(self) -> bool:
        """Tell whether nothing was run since the last call."""
        ...

    def trouble(self) -> str | None:
        """Return what keeps it from working at present, such as a database that does not answer."""
        ...

    def own_up(self) -> None:
        """Have the master suspect what has run and is not settled, too."""
        ...


@dataclass(slots=True)
class ChildProcess:
    """The child called `name` (it stands in the process title)."""

    name: str
    settings: Settings
    ends: ChildEnds
    log: Log
    _work: Work | None = None
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
        Strangers(signals, self.ends).expect()
        settings = self.settings
        longest = settings.child_heartbeat_limit + settings.child_kill_interval + RELEASE
        Beat(self.ends, signals, settings.child_heartbeat_interval, longest, self).start()

    def boot(self, make: Callable[[], Work]) -> Work | None:
        """Return the work that `make` makes and prepares, or None after telling the master what is wrong."""
        try:
            work = make()
            work.prepare()
        except ConfigError as error:
            log.debug("cannot begin", exc_info=True)
            self.ends.say(pipes.WHY, str(error))
        except BaseException as error:
            log.exception("cannot begin")
            self.ends.say(pipes.WHY, f"{type(error).__name__}: {error}")
        else:
            with self._lock:  # an order that finds no work yet ends the process, so it must not come in between
                self._work = work
            self.beating()  # first: what troubles it from the beginning is known when it is ready
            self.ends.say(pipes.READY)
            return work
        return None

    def stop(self, immediate: bool, grace: float | None = None) -> None:
        """Stop the work; without work nothing is held, and the process just ends."""
        with self._lock:
            work = self._work
            if work is None:
                self.ends.say(pipes.BYE)
                os._exit(DONE)
        work.stop(immediate, grace)

    def reopen(self) -> None:
        """Reopen the log file."""
        self.log.reopen()

    def own_up(self) -> None:
        """Have the master suspect what has run and is not settled, too."""
        if self._work is not None:
            self._work.own_up()

    def beating(self) -> bool:
        """Keep the process title, and what the master knows, up to date.

        Tells whether nothing was run since the last beat.
        """
        work = self._work
        trouble = None if work is None else work.trouble()
        if trouble != self._trouble:
            self.ends.say(pipes.TROUBLE, trouble or "")
            self._trouble = trouble
        running = None if work is None else work.running()
        if work is None:
            state = "booting"
        elif running is not None:
            state = f"running {running}"
        else:
            state = "idle" if trouble is None else "waiting for the database"
        if state != self._title:
            setproctitle(f"psched: {self.name} {state}")
            self._title = state
        return work is not None and work.rested()

    def leave(self) -> int:
        """Run what was registered to run at exit, say goodbye, and return the exit code."""
        atexit._run_exitfuncs()
        self.ends.say(pipes.BYE)
        return DONE


def work(boot: Boot, log_file: Log, ends: ChildEnds) -> int:
    """Be the worker that `boot` describes; returns its exit code."""
    child = ChildProcess(f"worker {boot.slot}", boot.settings, ends, log_file)
    pid = os.getpid()
    child.begin()
    labour = child.boot(lambda: build(boot, load(boot.application), ends.say))
    if labour is None:
        return BOOT_FAILED
    labour.run()
    if os.getpid() != pid:
        os._exit(DONE)  # forked by a handler: it must not speak or clean up in our name
    return child.leave()


def rehearse(application: ApplicationSpec, settings: Settings, log_file: Log, ends: ChildEnds) -> int:
    """Load the application and do nothing with it: whether it can be loaded is what the master wants to know."""
    child = ChildProcess("probe", settings, ends, log_file)
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

    def rested(self) -> bool:
        """Nothing ran."""
        return True

    def trouble(self) -> str | None:
        """It does not work."""
        return None

    def own_up(self) -> None:
        """Nothing ran."""

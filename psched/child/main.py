"""The main function of a forked child: start the control thread, load the application, do the work, exit."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import signal
import threading
from collections.abc import Callable

from psched.application import load
from psched.child.fetching_child import FetchingChild
from psched.child.handler_child import HandlerChild, LazyHandlerChild
from psched.child.heartbeat_and_control import ControlThread
from psched.config import Settings
from psched.errors import ConfigError
from psched.metrics.event_counters import ChildCounter
from psched.process.child_base import ChildBase
from psched.process.child_protocol import BOOT_FAILED, BYE, DONE, START_ERROR, ChildPipe
from psched.process.child_spec import FETCHER_SLOT, ChildSpec
from psched.process.logs import Log
from psched.process.signals import MASTER_SIGNALS, SignalQueue

log = logging.getLogger(__name__)

_COLLECTED = 10_000
"""How many new objects start Python's cyclic garbage collection. With Python's default of 700, collections took 6 % of
the processor time of no-op tasks (2026-11-28)."""


def child_main(
    name: str, settings: Settings, pipe: ChildPipe, log_file: Log, make: Callable[[ChildPipe], ChildBase]
) -> int:
    """Run the `ChildBase` that `make(pipe)` returns. Return the exit code. `name`: shown in the process title."""
    pid = os.getpid()
    gc.set_threshold(_COLLECTED)
    log_file.collect_output()
    signals = SignalQueue()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signals.install(MASTER_SIGNALS)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    register_fork_hooks(signals, pipe)
    control = ControlThread(name, pipe, signals, settings, log_file)
    control.start()
    try:
        role = make(pipe)
        role.prepare()
    except ConfigError as error:
        log.debug("%s cannot start", name, exc_info=True)
        pipe.send(START_ERROR, str(error))
        return BOOT_FAILED
    except BaseException as error:
        log.exception("%s cannot start", name)
        pipe.send(START_ERROR, f"{type(error).__name__}: {error}")
        return BOOT_FAILED
    control.started(role)
    role.run()
    if os.getpid() != pid:
        os._exit(DONE)  # a process forked by a handler must not report or clean up as the child does
    atexit._run_exitfuncs()
    pipe.send(BYE)
    return DONE


def role_of(spec: ChildSpec, pipe: ChildPipe) -> ChildBase:
    """Load the application and return the `ChildBase` that `spec` describes. Runs in the child's main thread."""
    if spec.counters is not None:
        ChildCounter(spec.counters).attach()
    application = load(spec.application)
    if spec.slot == FETCHER_SLOT:
        return FetchingChild(spec, application, pipe.send)
    handler_child = HandlerChild if spec.dispatch is None else LazyHandlerChild
    return handler_child(spec, application, pipe.send)


def register_fork_hooks(signals: SignalQueue, pipe: ChildPipe) -> None:
    """Detach each process that this child forks from now on: the new process gets no signals and no pipes of the child.

    Signals are blocked during the fork. A signal that reached the new process too early would be written to the signal
    queue that both processes still share: the new process would survive, and the child would stop instead.
    """
    mask = threading.local()

    def block() -> None:
        mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, MASTER_SIGNALS)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask.before)

    def detach() -> None:
        signals.abandon()
        for number in MASTER_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        pipe.close()
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=detach)

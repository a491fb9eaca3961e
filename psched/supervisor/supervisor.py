"""The master's loop and its signal handlers. The master opens no database and runs no task.

    running ──TERM, INT, QUIT──▶ stopping ──every slot empty, no lease to release──▶ done
       │ └──USR1, HUP──▶ dry run ──loaded──▶ running, with the new configuration
       └──WINCH, EMT──▶ upgrading ──the new master is up──▶ stopping

The master has one thread, and only `_wait` blocks. Times are monotonic seconds.
"""

from __future__ import annotations

import logging
import math
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from selectors import EVENT_READ, BaseSelector

from psched.clock import Clock, monotonic
from psched.metrics.event_counters import MasterCounter
from psched.process.child_spec import FETCHER_SLOT, FIRST_SLOT
from psched.process.dispatch_socket import DispatchSocket
from psched.process.escalation import RELEASE
from psched.process.signals import UPGRADE_NOW, SignalQueue, name_of
from psched.store import holder_name
from psched.supervisor.binary_upgrade import BinaryUpgrade
from psched.supervisor.fork_and_reap import ProcessTable
from psched.supervisor.lease_recovery import LeaseRecovery
from psched.supervisor.loaded_config import LoadedConfig
from psched.supervisor.master_status import MasterStatus
from psched.supervisor.reload_dry_run import Reload
from psched.supervisor.slot import Slot
from psched.supervisor.systemd import Notifier

log = logging.getLogger(__name__)

_LONGEST_WAIT = 1.0
"""The longest wait in seconds while the master is not idle. A busy child may leave orphans or freeze."""
_LONGEST_IDLE_WAIT = 60.0
_SUSPENSION = 1.0
"""If a wait exceeds its timeout by this many seconds, this process or its host was suspended."""
_RECOVERY = 5.0
"""How many seconds of a stop are reserved for releasing the leases of killed children (`lease_recovery`)."""
_LONGEST_STATUS = 500
_IS_STOPPING = "this master is stopping"
_IS_UPGRADING = "a new master is starting"


@dataclass(slots=True)
class Supervisor:
    config: LoadedConfig
    process_table: ProcessTable
    reload: Reload
    binary_upgrade: BinaryUpgrade
    notifier: Notifier
    on_ready: Callable[[], None] = lambda: None
    counters: MasterCounter | None = None
    clock: Clock = monotonic
    stop_timeout: float = math.inf
    """Seconds from TERM or INT until the service manager kills the master."""
    failure: str | None = None
    """Why the start failed for good."""
    _slots: dict[int, Slot] = field(default_factory=dict)
    _lease_recovery: LeaseRecovery = field(init=False)
    _status: MasterStatus = field(init=False)
    _dispatch: DispatchSocket | None = None
    _is_up: bool = False
    _stopping: bool = False
    _stop_now_at: float = math.inf
    _interrupted: bool = False
    _had_terminal: bool = field(init=False)
    _ignores_hup: bool = field(init=False)
    """Whether the master was started by nohup."""
    _awake_since: float = 0.0

    def __post_init__(self) -> None:
        self._had_terminal = _has_terminal()
        self._ignores_hup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._lease_recovery = LeaseRecovery(self.process_table)
        self._status = MasterStatus(self.reload.request, self.binary_upgrade.request)

    def begin(self) -> None:
        """Create the first slot. When its child is ready, `_check_whether_up` creates the others."""
        self.binary_upgrade.begin()
        self._open_dispatch_socket(self.config)
        self._add_slot(FIRST_SLOT if self._dispatch is None else FETCHER_SLOT)

    def run(self, selector: BaseSelector, signals: SignalQueue) -> None:
        """Run the master loop until `done`. The loop waits with `selector`.

        `signals`: the signals that the master gets.
        """
        self.begin()
        selector.register(signals.reader.descriptor, EVENT_READ)
        self._awake_since = self.clock()
        while not self.done:
            self._wait(selector)
            for number in signals.take():
                self.handle_signal(number)
            self.process_table.tick(self.clock())
            self.manage(self.clock())
            self._awake_since = self.clock()

    @property
    def done(self) -> bool:
        """Whether the stop is complete.

        A stop is not complete while a replaced master still has tasks, because the service manager would kill the
        replaced master, too.
        """
        is_over = self._stopping and not self._slots and self._lease_recovery.done
        return is_over and not self.binary_upgrade.old_is_alive

    @property
    def deadline(self) -> float:
        parts = (self.process_table, self.binary_upgrade, self.notifier, self._lease_recovery)
        slots = (slot.deadline for slot in self._slots.values())
        return min(self._stop_now_at, *slots, *(part.deadline for part in parts))

    @property
    def idle(self) -> bool:
        """Whether `manage` may be skipped until the deadline."""
        changing = self._stopping or self.reload.active or self.binary_upgrade.active or not self._lease_recovery.done
        return self._is_up and not changing and all(slot.idle for slot in self._slots.values())

    def _wait(self, selector: BaseSelector) -> None:
        """Wait for a message or the end of a child, for a signal, or until the next deadline."""
        longest = _LONGEST_IDLE_WAIT if self.idle else _LONGEST_WAIT
        timeout = min(max(0.0, self.deadline - self.clock()), longest)
        selector.select(timeout)
        now = self.clock()
        if now > self._awake_since + timeout + _SUSPENSION:
            self.reset_deadlines(now)

    def reset_deadlines(self, now: float) -> None:
        """Ignore the silence of children before `now`, because this process or its host was suspended."""
        log.warning(
            "the master did not run for a while (was the host suspended?); the deadlines of its children start again"
        )
        self.process_table.reset_deadlines(now)

    def handle_signal(self, number: int) -> None:
        """Call the handler named after the signal (`handle_term` for SIGTERM); see docs/operations.md."""
        name = "upgrade_now" if number == UPGRADE_NOW else name_of(number).removeprefix("SIG").lower()
        handler: Callable[[], None] | None = getattr(self, f"handle_{name}", None)
        if handler is not None:
            resized = number == signal.SIGWINCH and self._on_terminal
            log.log(logging.DEBUG if resized else logging.INFO, "received %s", name_of(number))
            handler()

    def handle_term(self) -> None:
        """Stop gracefully. A few seconds before the service manager would kill the process, stop immediately."""
        if not self._stopping and math.isfinite(self.stop_timeout):
            needed = self.config.settings.child_kill_interval + RELEASE + _RECOVERY
            self._stop_now_at = self.clock() + self.stop_timeout - min(needed, self.stop_timeout / 2)
        self._stop(immediate=False)

    def handle_quit(self) -> None:
        self._stop(immediate=True)

    def handle_int(self) -> None:
        """Stop gracefully. If Ctrl-C is pressed again on a terminal, stop immediately."""
        if self._interrupted and self._on_terminal:
            self._stop(immediate=True)
        else:
            self.handle_term()
        self._interrupted = True

    def handle_usr1(self) -> None:
        self._begin_reload(immediate=False)

    def handle_hup(self) -> None:
        """Begin an immediate reload.

        If the signal means that the terminal was closed, stop gracefully; under nohup, go on.
        """
        if not self._had_terminal or self._on_terminal:
            self._begin_reload(immediate=True)
        elif self._ignores_hup:
            log.info("the terminal is closed; the master continues, as it was started by nohup")
        else:
            self._stop(immediate=False)

    def handle_winch(self) -> None:
        """Begin a graceful binary upgrade. Refuse it if the signal means that the terminal was resized."""
        if not self._on_terminal:
            self._begin_upgrade(immediate=False)
        else:
            request = self.binary_upgrade.request
            request.begin()
            request.end("on a terminal SIGWINCH means a resize; use upgrade --immediate")

    def handle_upgrade_now(self) -> None:
        self._begin_upgrade(immediate=True)

    def handle_usr2(self) -> None:
        self.process_table.reopen_logs()

    def manage(self, now: float) -> None:
        if now >= self._stop_now_at:
            self._stop_now()
        config = self.reload.tick()
        if config is not None:
            self._apply(config, now)
        if self.binary_upgrade.tick(now):
            self._stop(self.binary_upgrade.immediate)
        for slot in list(self._slots.values()):
            slot.tick(now)
            if slot.gone:
                del self._slots[slot.number]
                if self.counters is not None:
                    self.counters.release(slot.title)
        is_last = self._stopping and not self._slots
        self._lease_recovery.tick(now, self.config.settings, is_last, self._holders())
        if not self.reload.active:
            self.notifier.reloaded()
        troubles = (slot.trouble for slot in self._slots.values() if slot.trouble is not None)
        self._status.troubles = tuple(dict.fromkeys(troubles))
        self._status.pending = tuple(pending for slot in self._slots.values() if (pending := slot.pending) is not None)
        self._publish()
        if not self._is_up and not self._stopping:
            self._check_whether_up()  # publish first: `pschedd start` reads the status at once
        self.notifier.tick(now, self._summary())

    @property
    def _on_terminal(self) -> bool:
        return self._had_terminal and _has_terminal()

    def _stop_now(self) -> None:
        """Stop the tasks that still run, while there is still time to release them."""
        self._stop_now_at = math.inf
        if self._slots or self.binary_upgrade.old_is_alive:
            log.warning("the %g s for a stop (PSCHED_STOP_TIMEOUT) have nearly passed; stopping now", self.stop_timeout)
            self._stop(immediate=True)

    def _stop(self, immediate: bool) -> None:
        log.info("stopping %s", "now" if immediate else "when the running tasks are done")
        self._stopping = True
        self.reload.abort(_IS_STOPPING)
        self.binary_upgrade.abort(_IS_STOPPING)
        self.binary_upgrade.stop_old(immediate)
        self.notifier.notify(STOPPING=1)
        now = self.clock()
        for slot in self._slots.values():
            slot.retire(immediate, now)

    def _begin_reload(self, immediate: bool) -> None:
        self.reload.request.begin()
        self._publish()  # publish before any file is read; see `RequestStatus`
        refusal = _IS_STOPPING if self._stopping else _IS_UPGRADING if self.binary_upgrade.active else None
        if refusal is not None:
            log.warning("reload refused: %s", refusal)
            self.reload.request.end(refusal)
            return
        self.notifier.reloading()
        self.reload.begin(immediate)

    def _begin_upgrade(self, immediate: bool) -> None:
        self.binary_upgrade.request.begin()
        if self._stopping:
            log.warning("upgrade refused: %s", _IS_STOPPING)
            self.binary_upgrade.request.end(_IS_STOPPING)
            return
        self.reload.abort(_IS_UPGRADING)
        self.binary_upgrade.start(immediate, self.clock())

    def _apply(self, config: LoadedConfig, now: float) -> None:
        immediate = self.reload.immediate
        try:
            self._open_dispatch_socket(config)
        except OSError as error:
            log.error(
                "reload failed: cannot open a socket for the workers: %s; the workers continue unchanged",
                error.strerror,
            )
            return
        log.info("reloading %s", "now" if immediate else "each worker after its task")
        self.config = config
        for slot in self._slots.values():
            slot.replace(config, self._dispatch, immediate, now)
        self._resize(now, immediate)

    def _resize(self, now: float, immediate: bool = False) -> None:
        wanted = range(FIRST_SLOT if self._dispatch is None else FETCHER_SLOT, self.config.slots + 1)
        for number, slot in self._slots.items():
            if number not in wanted:
                slot.retire(immediate, now)
        for number in wanted:
            if number not in self._slots:
                self._add_slot(number)

    def _add_slot(self, number: int) -> None:
        self._slots[number] = Slot(
            number,
            self.config,
            self._dispatch,
            self._siblings,
            self.process_table,
            self._lease_recovery,
            self._give_up_start,
            self.counters,
        )

    def _open_dispatch_socket(self, config: LoadedConfig) -> None:
        """Replace the dispatch socket. Children of the previous configuration keep the old one. Raises OSError."""
        before, self._dispatch = self._dispatch, DispatchSocket(holder_name("node")) if config.slots > 1 else None
        if before is not None:
            before.close()

    def _siblings(self) -> tuple[str, ...]:
        specs = [slot.living for slot in self._slots.values()]
        return tuple(spec.name for spec in specs if spec is not None and spec.dispatch is self._dispatch)

    def _holders(self) -> set[str]:
        """Return the holders of the living children, and of the next children."""
        specs = [slot.living for slot in self._slots.values()]
        current = [] if self._dispatch is None else [self._dispatch.holder]
        return {*current, *(spec.holder for spec in specs if spec is not None)}

    def _give_up_start(self, reason: str) -> bool:
        """Stop the master if no child was ever ready. Return whether it stops. If not, the slot tries again."""
        if self._is_up or self._stopping or any(slot.was_ready for slot in self._slots.values()):
            return False
        self.failure = reason
        self._stop(immediate=True)
        return True

    def _check_whether_up(self) -> None:
        if not all(slot.began for slot in self._slots.values()):
            return
        if len(self._slots) < self.config.slots + (self._dispatch is not None):
            self._resize(self.clock())
            return
        self._is_up = True
        log.info("up: %s, master pid %d", self._summary(), os.getpid())
        self.binary_upgrade.came_up()
        self.notifier.notify(READY=1, STATUS=self._summary())
        self.on_ready()

    def _publish(self) -> None:
        self.binary_upgrade.publish(self._status.line())

    def _summary(self) -> str:
        names = [name.partition(":")[2] for slot in self._slots.values() for name in slot.running]
        count = sum(slot.number != FETCHER_SLOT for slot in self._slots.values())
        workers = f"{count} worker{'s' if count != 1 else ''}"
        shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        troubles = self._status.troubles
        state = f"{len(names)} running {shown}" if names else "waiting" if troubles else "idle"
        return "; ".join([f"{workers}, {state}", *troubles])[:_LONGEST_STATUS]


def _has_terminal() -> bool:
    try:
        descriptor = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    os.close(descriptor)
    return True

"""The master: slots, and what signals make of them. It opens no database and runs no handler.

    running ──TERM, INT, QUIT──▶ stopping ──every slot empty, nothing to give back──▶ done
       │ └──USR1, HUP──▶ rehearsing ──loaded──▶ running, by the new plan
       └──WINCH, EMT──▶ replacing ──the new master is up──▶ stopping

Times are monotonic seconds. Nothing here waits: the loop in `engine` calls `take_signal` and `tick`.
"""

from __future__ import annotations

import logging
import math
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

from psched.clock import Clock, monotonic
from psched.process.escalation import RELEASE
from psched.process.logs import Log
from psched.process.poll_election import PollElection, open_election
from psched.process.signals import REPLACE_NOW, name_of
from psched.supervisor.binary_upgrade import BinaryUpgrade
from psched.supervisor.daemonize import Terminal
from psched.supervisor.forking import ProcessTable
from psched.supervisor.lease_recovery import DeadChildren, LeaseRecovery
from psched.supervisor.master_status import MasterStatus
from psched.supervisor.reload import LoadedConfig, Reload
from psched.supervisor.slot import Slot
from psched.supervisor.systemd import SystemdReporter

log = logging.getLogger(__name__)

_GIVE_BACK = 5.0
"""Seconds for what a child that had to be killed held to be given back in its place (see `executor`), and a reserve."""
_LONGEST_STATUS = 500
_IS_STOPPING = "this master is stopping"
_IS_REPLACED = "a new master is starting"


@dataclass(slots=True)
class Supervisor:
    """Keeps the plan's children at work, and obeys."""

    plan: LoadedConfig
    process_table: ProcessTable
    log_file: Log
    restart: Reload
    binary_upgrade: BinaryUpgrade
    reporter: SystemdReporter
    terminal: Terminal
    clock: Clock = monotonic
    stop_timeout: float = math.inf
    """Seconds after TERM or INT by which the master must have ended: then its service manager kills it."""
    failure: str | None = None
    """Why nothing could be started at all."""
    _slots: dict[int, Slot] = field(default_factory=dict)
    _estate: DeadChildren = field(default_factory=DeadChildren)
    _executor: LeaseRecovery = field(init=False)
    _report: MasterStatus = field(default_factory=MasterStatus)
    _watch: PollElection | None = None
    _was_up: bool = False
    _stopping: bool = False
    _hurry_at: float = math.inf
    _interrupted: bool = False

    def __post_init__(self) -> None:
        self._executor = LeaseRecovery(self._estate, self.process_table, self.log_file)

    def begin(self) -> None:
        """Make the first slot; the first `tick` forks its child."""
        self.binary_upgrade.begin()
        self._open_watch()
        self._add(1)  # the others come when it has seen that there is something to work on

    @property
    def done(self) -> bool:
        """Whether every child is gone after a stop, and what the dead held was given back, or could not be.

        And the master that this one has replaced is gone: what it still runs would be killed with the service.
        """
        return self._deserted and self._executor.done and not self.binary_upgrade.old_is_alive

    @property
    def deadline(self) -> float:
        """When `tick` is due at the latest."""
        slots = [slot.deadline for slot in self._slots.values()]
        others = (self.process_table, self.restart, self.binary_upgrade, self.reporter, self._executor)
        return min([self._hurry_at, *slots, *(part.deadline for part in others)])

    @property
    def idle(self) -> bool:
        """Whether nothing goes on, so that `tick` need not be called before the deadline."""
        changing = self._stopping or self.restart.active or self.binary_upgrade.active or not self._executor.done
        return self._was_up and not changing and all(slot.idle for slot in self._slots.values())

    def take_signal(self, number: int) -> None:
        """Do what the signal asks for; see the table in docs/operations.md."""
        verb = self._verbs().get(number)
        if verb is not None:
            resized = number == signal.SIGWINCH and self.terminal.attached
            log.log(logging.DEBUG if resized else logging.INFO, "received %s", name_of(number))
            verb()

    def tick(self, now: float) -> None:
        """Do what is due in every part."""
        self.process_table.tick(now)
        if now >= self._hurry_at:
            self._hurry()
        plan = self.restart.tick(now)
        if plan is not None:
            self._adopt(plan, now)
        if self.binary_upgrade.tick(now):
            self._stop(self.binary_upgrade.immediate)
        for slot in list(self._slots.values()):
            slot.tick(now)
            if slot.gone:
                del self._slots[slot.number]
        self._executor.tick(now, self.plan.settings, last=self._deserted)
        if not self.restart.active:
            self.reporter.reloaded()
            self._report.reload.end(self.restart.refusal)
        if not self.binary_upgrade.active:
            self._report.upgrade.end(self.binary_upgrade.refusal)
        self._report.troubles = self._troubles()
        self._report.pending = tuple(slot.pending for slot in self._slots.values() if slot.pending is not None)
        self.binary_upgrade.publish(self._report.line())
        if not self._was_up and not self._stopping:
            self._see_whether_up()  # after that: `start` reads what was published before it was told
        self.reporter.tick(now, self._status())

    def reset_deadlines(self, now: float) -> None:
        """Count no child's silence before `now`: the whole host, or this process, stood still."""
        log.warning("time has passed unseen (was the host suspended?); no worker is blamed for it")
        for slot in self._slots.values():
            slot.reset_deadlines(now)
        self.restart.reset_deadlines(now)
        self._executor.reset_deadlines(now)

    @property
    def _deserted(self) -> bool:
        return self._stopping and not self._slots

    def _verbs(self) -> dict[int, Callable[[], None]]:
        return {
            signal.SIGTERM: self._terminate,
            signal.SIGQUIT: lambda: self._stop(immediate=True),
            signal.SIGINT: self._interrupt,
            signal.SIGUSR1: lambda: self._restart(immediate=False),
            signal.SIGHUP: self._hang_up,
            signal.SIGWINCH: self._window_changed,
            REPLACE_NOW: lambda: self._replace(immediate=True),
            signal.SIGUSR2: self._reopen_logs,
        }

    def _terminate(self) -> None:
        """TERM asks for a graceful stop, which has to be over before a service manager loses patience."""
        if not self._stopping:
            self._hurry_at = self.clock() + self.stop_timeout - self._time_to_leave()
        self._stop(immediate=False)

    def _time_to_leave(self) -> float:
        """Seconds that an immediate stop takes: handlers are told, killed, and their tasks given back."""
        settings = self.plan.settings
        needed = settings.child_kill_interval + RELEASE + _GIVE_BACK
        return min(needed, self.stop_timeout / 2) if math.isfinite(self.stop_timeout) else 0.0

    def _hurry(self) -> None:
        """Stop what still runs, while there is time to tell it and to give it back."""
        self._hurry_at = math.inf
        if self._slots or self.binary_upgrade.old_is_alive:
            log.warning("the %g s for a stop (PSCHED_STOP_TIMEOUT) are nearly over", self.stop_timeout)
            self._stop(immediate=True)

    def _stop(self, immediate: bool) -> None:
        log.info("stopping %s", "now" if immediate else "when the running tasks are done")
        self._stopping = True
        self.restart.abort(_IS_STOPPING)
        self.binary_upgrade.abort()
        self.binary_upgrade.stop_old(immediate)
        self.reporter.stopping()
        now = self.clock()
        for slot in self._slots.values():
            slot.retire(immediate, now)

    def _interrupt(self) -> None:
        """Ctrl-C: who presses it again on a terminal means it."""
        if self._interrupted and self.terminal.attached:
            self._stop(immediate=True)
        else:
            self._terminate()
        self._interrupted = True

    def _hang_up(self) -> None:
        """HUP asks for an immediate restart, unless it is a terminal that says goodbye."""
        if not self.terminal.closed:
            self._restart(immediate=True)
        elif self.terminal.is_nohup:
            log.info("the terminal is closed; going on, as nohup asks")
        else:
            self._stop(immediate=False)

    def _window_changed(self) -> None:
        """WINCH asks for a graceful binary replace, unless it is a terminal that was resized."""
        if not self.terminal.attached:
            self._replace(immediate=False)
        else:
            self._report.upgrade.begin()
            self._report.upgrade.end("on a terminal the signal means that this was resized; upgrade --immediate works")

    def _restart(self, immediate: bool) -> None:
        self._report.reload.begin()
        self.binary_upgrade.publish(self._report.line())  # before anything is read: see `Requests`
        refusal = _IS_STOPPING if self._stopping else _IS_REPLACED if self.binary_upgrade.active else None
        if refusal is not None:
            log.warning("not restarted: %s", refusal)
            self._report.reload.end(refusal)
            return
        self.reporter.reloading()
        self.restart.begin(immediate, self.clock())

    def _replace(self, immediate: bool) -> None:
        self._report.upgrade.begin()
        if self._stopping:
            log.warning("not replaced: %s", _IS_STOPPING)
            self._report.upgrade.end(_IS_STOPPING)
            return
        self.restart.abort(_IS_REPLACED)
        self.binary_upgrade.ask(immediate, self.clock())

    def _reopen_logs(self) -> None:
        self.log_file.reopen()
        for slot in self._slots.values():
            slot.reopen_log()

    def _adopt(self, plan: LoadedConfig, now: float) -> None:
        """Go on by the new plan: every slot replaces its child, and there are as many slots as it says."""
        immediate = self.restart.immediate
        log.info("restarting %s", "now" if immediate else "each worker after its task")
        self.plan = plan
        self._open_watch()
        for slot in self._slots.values():
            slot.replace(plan, self._watch, immediate, now)
        self._resize(now, immediate)

    def _resize(self, now: float, immediate: bool = False) -> None:
        wanted = range(1, self.plan.slots + 1)
        for number, slot in self._slots.items():
            if number not in wanted:
                slot.retire(immediate, now)
        for number in wanted:
            if number not in self._slots:
                self._add(number)

    def _add(self, number: int) -> None:
        self._slots[number] = Slot(
            number, self.plan, self._watch, self.process_table, self._estate, self.log_file, self._ends_the_start
        )

    def _open_watch(self) -> None:
        """Make the watch of this plan's children; those of the one before have theirs."""
        if self._watch is not None:
            self._watch.close()
        self._watch = open_election(self.plan.slots, self.plan.sections)

    def _ends_the_start(self, reason: str) -> bool:
        """End a start in which nothing ever worked; later on a slot just tries again."""
        if self._was_up or self._stopping or any(slot.was_ready for slot in self._slots.values()):
            return False
        self.failure = reason
        self._stop(immediate=True)
        return True

    def _see_whether_up(self) -> None:
        if not all(slot.began for slot in self._slots.values()):
            return
        if len(self._slots) < self.plan.slots:
            self._resize(self.clock())
            return
        self._was_up = True
        log.info("up: %s, master pid %d", self._status(), os.getpid())
        self.binary_upgrade.came_up()
        self.reporter.came_up(self._status())

    def _status(self) -> str:
        names = [name.partition(":")[2] for slot in self._slots.values() for name in slot.running]
        count = len(self._slots)
        workers = f"{count} worker{'s' if count != 1 else ''}"
        shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        troubles = self._troubles()
        state = f"{len(names)} running {shown}" if names else "waiting" if troubles else "idle"
        return "; ".join([f"{workers}, {state}", *troubles])[:_LONGEST_STATUS]

    def _troubles(self) -> tuple[str, ...]:
        """Return what keeps workers from working, each thing once."""
        return tuple(dict.fromkeys(slot.trouble for slot in self._slots.values() if slot.trouble is not None))

"""What the master runs at present: settings and application of one generation. Made at each restart. In the master."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from psched.application import ApplicationSpec
from psched.child import main as child_process
from psched.config import Settings
from psched.errors import ConfigError
from psched.process.escalation import Escalation, Limits, Order
from psched.process.logs import Log
from psched.supervisor.forking import ProcessTable
from psched.supervisor.preload import preload


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """One configuration and what it makes of the master."""

    settings: Settings
    application: ApplicationSpec

    @property
    def slots(self) -> int:
        """How many children there are: with `processor_type: thread` one, which has the processors as threads."""
        return 1 if self.settings.processor_type == "thread" else self.settings.processors

    @property
    def cells(self) -> int:
        """How many handler threads each child has."""
        return self.settings.processors if self.settings.processor_type == "thread" else 1

    @property
    def sections(self) -> tuple[str, ...]:
        """The names of the sections that are served."""
        return tuple(name for name, _ in self.settings.named_sections)

    @property
    def limits(self) -> Limits:
        """What the children's lives are bounded by."""
        settings = self.settings
        return Limits(settings.child_heartbeat_limit, settings.child_kill_interval, settings.child_graceful_kill_limit)


def config_loader(
    load_config: Callable[[], Settings], application: ApplicationSpec | None
) -> Callable[[], LoadedConfig]:
    """Return what makes a plan of the configuration as it is then. `application` None: as configured."""

    def make() -> LoadedConfig:
        settings = load_config()
        return LoadedConfig(settings, configured_application(settings) if application is None else application)

    return make


def configured_application(settings: Settings) -> ApplicationSpec:
    """Return what the sections name: one application for all of them, or one for each where they differ."""

    def of(key: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for section in settings.sections for name in getattr(section, key)))

    named = {"schedules": settings.schedules, "queue": settings.queue}
    own = tuple(
        (name, ApplicationSpec(section.app, section.include, section.require))
        for name, section in named.items()
        if section is not None
    )
    same = len({spec for _, spec in own}) <= 1
    return ApplicationSpec(of("app"), of("include"), of("require"), () if same else own)


class DryRun:
    """One rehearsal of `plan`. After `limit` seconds it has failed."""

    def __init__(
        self, plan: LoadedConfig, process_table: ProcessTable, log_file: Log, limit: float, now: float
    ) -> None:
        """Raises OSError when the system has no process left."""
        self.plan = plan
        self._limit = limit
        job = partial(child_process.dry_run, plan.application, plan.settings, log_file)
        self._child = process_table.fork("probe", job)
        self._handle = Escalation(plan.limits, now)
        self._late = False
        self._over = now + limit

    @property
    def deadline(self) -> float:
        """When `tick` is due at the latest, monotonic."""
        return min(self._over, self._handle.deadline)

    def tick(self, now: float) -> bool:
        """Watch the rehearsal; True when it is over."""
        self._handle.hear(self._child.heard)
        if self._child.gone:
            return True
        if self._handle.tick(now) is Order.KILL or now >= self._over:
            self._late = True
            self.abort()
        return False

    def reset_deadlines(self, now: float) -> None:
        """Count no silence before `now`."""
        self._handle.hear(now)

    def abort(self) -> None:
        """End it; it holds nothing."""
        self._over = float("inf")
        self._child.kill()

    @property
    def problem(self) -> str | None:
        """Once it is over: why the application cannot be loaded, or None when it can."""
        if self._child.ready:
            return None
        if self._late:
            return f"the application was not loaded within {self._limit:g} s"
        return self._child.why or f"the process that loaded it {self._child.end}"


log = logging.getLogger(__name__)


class Reload:
    """Rehearses restarts, one at a time. `limit`: seconds that loading the application may take."""

    def __init__(
        self, make_plan: Callable[[], LoadedConfig], process_table: ProcessTable, log_file: Log, limit: float
    ) -> None:
        self._make_plan = make_plan
        self._nursery = process_table
        self._log_file = log_file
        self._limit = limit
        self._probe: DryRun | None = None
        self.immediate = False
        """Whether running tasks are to be given back when it succeeds."""
        self.refusal: str | None = None
        """Why the last rehearsal, once it is over, has led to nothing; None when it has succeeded."""

    @property
    def active(self) -> bool:
        """Whether a rehearsal is on."""
        return self._probe is not None

    @property
    def deadline(self) -> float:
        """When `tick` is due at the latest, monotonic."""
        return float("inf") if self._probe is None else self._probe.deadline

    def begin(self, immediate: bool, now: float) -> bool:
        """Load the configuration and begin the rehearsal; False, and a line in the log, when that fails already.

        A restart asked for during another one starts it afresh: the files may have changed once more.
        """
        self.immediate = immediate or (self.active and self.immediate)
        self.abort("another reload was asked for")
        try:
            plan = self._make_plan()
            preload(plan.settings)
            self._probe = DryRun(plan, self._nursery, self._log_file, self._limit, now)
            self.refusal = None
        except (ConfigError, OSError) as error:
            self.refusal = str(error)
            log.error("not restarted: %s; everything goes on as it was", error)
        except (Exception, SystemExit) as error:
            self.refusal = f"loading the configuration failed: {error!r}"
            log.error(
                "not restarted: loading the configuration failed: %r; everything goes on as it was",
                error,
                exc_info=error,
            )
        return self.active

    def tick(self, now: float) -> LoadedConfig | None:
        """Watch the rehearsal and return the plan when it has succeeded; the log is then where the plan says."""
        probe = self._probe
        if probe is None or not probe.tick(now):
            return None
        self._probe = None
        problem = probe.problem
        if problem is None:
            problem = self._move_log(probe.plan)
        self.refusal = problem
        if problem is None:
            return probe.plan
        log.error("not restarted: %s; the old workers go on", problem)
        return None

    def reset_deadlines(self, now: float) -> None:
        """Count no silence before `now`."""
        if self._probe is not None:
            self._probe.reset_deadlines(now)

    def abort(self, why: str) -> None:
        """End a rehearsal without a result."""
        probe, self._probe = self._probe, None
        if probe is not None:
            self.refusal = why
            probe.abort()

    def _move_log(self, plan: LoadedConfig) -> str | None:
        if plan.settings.log == self._log_file.path:
            return None
        try:
            self._log_file.move(plan.settings.log)
        except ConfigError as error:
            return str(error)
        return None

"""Reload: read the configuration anew, and load the application in a dry-run child before workers are replaced."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from psched.application import ApplicationSpec, load
from psched.config import Settings
from psched.errors import ConfigError
from psched.process.child_interface import ChildRole
from psched.process.child_protocol import ChildPipe
from psched.process.escalation import Escalation, Limits, Order
from psched.process.logs import Log
from psched.supervisor.child import ChildProcess
from psched.supervisor.fork_and_reap import ProcessTable
from psched.supervisor.master_status import RequestStatus
from psched.supervisor.preload_libraries import preload

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    settings: Settings
    application: ApplicationSpec

    @classmethod
    def load(cls, load_settings: Callable[[], Settings], application: ApplicationSpec | None) -> LoadedConfig:
        """Load the settings, and preload the modules of the children. `application` None: as configured."""
        settings = load_settings()
        preload(settings)
        return cls(settings, configured_application(settings) if application is None else application)

    @property
    def slots(self) -> int:
        """With `processor_type: thread` one child has all the processors as threads."""
        return 1 if self.settings.processor_type == "thread" else self.settings.processors

    @property
    def cells(self) -> int:
        return self.settings.processors if self.settings.processor_type == "thread" else 1

    @property
    def limits(self) -> Limits:
        settings = self.settings
        return Limits(settings.child_heartbeat_limit, settings.child_kill_interval, settings.child_graceful_kill_limit)


def configured_application(settings: Settings) -> ApplicationSpec:
    """Return one application for all sections, or one for each where they differ."""

    def of(key: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for section in settings.sections for name in getattr(section, key)))

    own = tuple(
        (name, ApplicationSpec(section.app, section.include, section.require))
        for name, section in settings.named_sections
    )
    same = len({spec for _, spec in own}) <= 1
    return ApplicationSpec(of("app"), of("include"), of("require"), () if same else own)


def _load_application(application: ApplicationSpec, pipe: ChildPipe) -> ChildRole:
    load(application)
    return ChildRole()


@dataclass(slots=True)
class _DryRun:
    config: LoadedConfig
    child: ChildProcess
    escalation: Escalation
    end_at: float
    timed_out: bool = False


@dataclass(slots=True)
class Reload:
    load_config: Callable[[], LoadedConfig]
    process_table: ProcessTable
    log_file: Log
    limit: float
    request: RequestStatus = field(default_factory=RequestStatus)
    immediate: bool = False
    """Whether running tasks are stopped and given back when the reload succeeds."""
    _dry_run: _DryRun | None = None

    @property
    def active(self) -> bool:
        return self._dry_run is not None

    @property
    def deadline(self) -> float:
        dry = self._dry_run
        return math.inf if dry is None else min(dry.end_at, dry.escalation.deadline)

    def begin(self, immediate: bool, now: float) -> None:
        """Load the configuration and fork the dry run. A failure is logged and ends the request.

        A reload during another one replaces it: the files may have changed once more.
        """
        self.immediate = immediate or (self.active and self.immediate)
        self._kill_dry_run()
        try:
            config = self.load_config()
            make = partial(_load_application, config.application)
            child = self.process_table.fork("dry run", config.settings, make)
            self._dry_run = _DryRun(config, child, Escalation(config.limits, now), now + self.limit)
        except (ConfigError, OSError) as error:
            self._refuse(str(error))
        except (Exception, SystemExit) as error:  # noqa: BLE001 – a callable of the user; logged with its traceback
            self._refuse(f"loading the configuration failed: {error!r}", error)

    def tick(self, now: float) -> LoadedConfig | None:
        """Supervise the dry run; once it has succeeded, move the log and return the new configuration."""
        dry = self._dry_run
        if dry is None:
            return None
        dry.escalation.child_seen(dry.child.last_seen)
        if not dry.child.gone:
            if dry.escalation.tick(now) is Order.KILL or now >= dry.end_at:
                dry.timed_out, dry.end_at = True, math.inf
                dry.child.kill()
            return None
        self._dry_run = None
        try:
            self._check(dry)
            if dry.config.settings.log != self.log_file.path:
                self.log_file.move(dry.config.settings.log)
        except ConfigError as error:
            self._refuse(str(error))
            return None
        self.request.end(None)
        return dry.config

    def reset_deadlines(self, now: float) -> None:
        if self._dry_run is not None:
            self._dry_run.escalation.child_seen(now)

    def abort(self, why: str) -> None:
        if self._dry_run is not None:
            self.request.end(why)
            self._kill_dry_run()

    def _kill_dry_run(self) -> None:
        dry, self._dry_run = self._dry_run, None
        if dry is not None and not dry.child.gone:
            dry.child.kill()

    def _refuse(self, reason: str, error: BaseException | None = None) -> None:
        self.request.end(reason)
        log.error("reload refused: %s; the workers go on unchanged", reason, exc_info=error)

    def _check(self, dry: _DryRun) -> None:
        if dry.child.ready:
            return
        if dry.timed_out:
            raise ConfigError(f"the application was not loaded within {self.limit:g} s")
        raise ConfigError(dry.child.start_error or f"the process that loaded it {dry.child.end}")

"""Reload: reads the configuration again, and loads the application in a dry-run child before workers are replaced."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from psched.application import ApplicationSpec, load
from psched.errors import ConfigError
from psched.process.child_base import ChildBase
from psched.process.child_protocol import ChildPipe
from psched.supervisor.child import ChildProcess
from psched.supervisor.fork_and_reap import ProcessTable
from psched.supervisor.loaded_config import LoadedConfig
from psched.supervisor.master_status import RequestStatus

log = logging.getLogger(__name__)


def _load_application(application: ApplicationSpec, pipe: ChildPipe) -> ChildBase:
    load(application)
    return ChildBase()


@dataclass(slots=True)
class Reload:
    load_config: Callable[[], LoadedConfig]
    process_table: ProcessTable
    limit: float
    request: RequestStatus = field(default_factory=RequestStatus)
    immediate: bool = False
    """Whether running tasks are stopped and released when the reload succeeds."""
    _dry_run: tuple[LoadedConfig, ChildProcess] | None = None

    @property
    def active(self) -> bool:
        return self._dry_run is not None

    def begin(self, immediate: bool) -> None:
        """Load the configuration and fork the dry-run child. A failure is logged and ends the request.

        A second reload replaces a first reload that is in progress, because the files may have changed again.
        """
        self.immediate = immediate or (self.active and self.immediate)
        self._kill_dry_run()
        try:
            config = self.load_config()
            make = partial(_load_application, config.application)
            self._dry_run = config, self.process_table.fork("dry run", config.settings, make, lifetime=self.limit)
        except (ConfigError, OSError) as error:
            self._refuse(str(error))
        except (Exception, SystemExit) as error:  # noqa: BLE001 – a callable of the user; logged with its traceback
            self._refuse(f"loading the configuration failed: {error!r}", error)

    def tick(self) -> LoadedConfig | None:
        """When the dry-run child has succeeded, apply the new settings of the log, and return the new configuration.

        Until then, or if the reload fails, return None.
        """
        if self._dry_run is None or not self._dry_run[1].gone:
            return None
        (config, child), self._dry_run = self._dry_run, None
        try:
            self._check(child)
            if config.settings.log != self.process_table.log_file.path:
                self.process_table.log_file.move(config.settings.log)
            self.process_table.log_file.json = config.settings.log_format == "json"
        except ConfigError as error:
            self._refuse(str(error))
            return None
        self.request.end(None)
        return config

    def abort(self, why: str) -> None:
        if self._dry_run is not None:
            self.request.end(why)
            self._kill_dry_run()

    def _kill_dry_run(self) -> None:
        if self._dry_run is not None:
            (_, child), self._dry_run = self._dry_run, None
            if not child.gone:
                child.kill()

    def _refuse(self, reason: str, error: BaseException | None = None) -> None:
        self.request.end(reason)
        log.error("reload refused: %s; the workers continue unchanged", reason, exc_info=error)

    def _check(self, child: ChildProcess) -> None:
        if child.ready:
            return
        if child.killed_here:
            raise ConfigError(f"the application was not loaded within {self.limit:g} s")
        raise ConfigError(child.start_error or f"the process that loaded the application {child.end}")

"""The configuration of the children, and the libraries they share: loaded before they are forked. In the master."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from psched.application import ApplicationSpec
from psched.config import Settings, preload_listeners
from psched.cron import validate
from psched.execution.open_sections import open_sections

_EVERY_MINUTE = "* * * * *"
"""An expression that is parsed once here, so that children need not import the parser nor open the time zone."""


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
        """Number of children. With `processor_type: thread` one child has all the processors as threads."""
        return 1 if self.settings.processor_type == "thread" else self.settings.processors

    @property
    def handler_threads(self) -> int:
        """Number of threads of one child."""
        return self.settings.processors if self.settings.processor_type == "thread" else 1


def configured_application(settings: Settings) -> ApplicationSpec:
    """Return one application for all sections, or one for each where they differ."""

    def of(key: str) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(name for section in settings.sections for name in getattr(section, key)))

    own = tuple(
        (name, ApplicationSpec(section.app, section.include, section.require))
        for name, section in settings.named_sections
    )
    same = len({spec for _, spec in own}) <= 1
    return ApplicationSpec(of("app"), of("include"), of("require"), () if same else own)


def preload(settings: Settings) -> None:
    """Import the stores, drivers and listeners that `settings` name. Stores are opened and closed, not connected.

    All objects are then hidden from the garbage collector: it writes to each object it visits, and a page that is
    written to is no longer shared. The cache of module folders is emptied, so that each child sees new files. Raises
    ConfigError for a store, driver or listener that is not there.
    """
    _load_stores(settings)
    preload_listeners(settings)
    for _, section in settings.named_sections:
        validate(_EVERY_MINUTE, section.timezone, section.cron_dialect)
    sys.path_importer_cache.clear()
    gc.collect()
    gc.freeze()


def _load_stores(settings: Settings) -> None:
    """Open the stores and close them, in a frame of its own so that no variable keeps one alive."""
    for open_section in open_sections(settings, "preload"):
        with suppress(OSError):  # inotify's library looks for libc in another process; a child logs what fails
            wakeup = open_section.source.store.open_wakeup()
            if wakeup is not None:
                wakeup.close()
        open_section.source.store.close()

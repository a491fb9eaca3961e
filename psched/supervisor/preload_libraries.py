"""The configuration of the children, and the libraries that they share. The master loads both before it forks."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psched.application.conversion  # noqa: F401 – for typed functions: else 4 MB more in each child (2026-11-29)
from psched.application import ApplicationSpec
from psched.config import Settings, preload_listeners
from psched.cron import validate
from psched.execution.opened_stores import open_sections

_EVERY_MINUTE = "* * * * *"
"""An expression that is parsed once in the master, so that children need not import the parser or open the time zone.
"""


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    settings: Settings
    application: ApplicationSpec

    @classmethod
    def load(cls, load_settings: Callable[[], Settings], application: ApplicationSpec | None) -> LoadedConfig:
        """Load the settings, and preload the modules of the children.

        `application` None: the configured application.
        """
        settings = load_settings()
        preload(settings)
        return cls(settings, configured_application(settings) if application is None else application)

    @property
    def slots(self) -> int:
        """How many children run tasks.

        With `processor_type: thread` there is one child, with as many threads as `processors` says.
        """
        return 1 if self.settings.processor_type == "thread" else self.settings.processors

    @property
    def handler_threads(self) -> int:
        """How many handler threads one child has."""
        return self.settings.processors if self.settings.processor_type == "thread" else 1


def configured_application(settings: Settings) -> ApplicationSpec:
    """Return one application for all sections, or one for each section if they differ."""

    def of(key: str) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(name for section in settings.sections for name in getattr(section, key)))

    own = tuple(
        (name, ApplicationSpec(section.app, section.include, section.require))
        for name, section in settings.named_sections
    )
    same = len({spec for _, spec in own}) <= 1
    return ApplicationSpec(of("app"), of("include"), of("require"), () if same else own)


def preload(settings: Settings) -> None:
    """Import the stores, drivers and listeners that `settings` name. Stores are opened and closed, but not connected.

    Afterwards all objects are hidden from the garbage collector: it would write to each object, and a written page of
    memory is no longer shared with the children. The cache of module folders is emptied, so that each child sees new
    files. Raises ConfigError for a store, driver or listener that does not exist.
    """
    _load_stores(settings)
    preload_listeners(settings)
    for _, section in settings.named_sections:
        validate(_EVERY_MINUTE, section.timezone, section.cron_dialect)
    sys.path_importer_cache.clear()
    gc.collect()
    gc.freeze()


def _load_stores(settings: Settings) -> None:
    """Open the stores and close them, in a separate function, so that no variable keeps a store alive."""
    for open_section in open_sections(settings, "preload"):
        with suppress(OSError):  # inotify's library starts a process to find libc; a failure is logged by a child
            wakeup = open_section.source.store.open_wakeup()
            if wakeup is not None:
                wakeup.close()
        open_section.source.store.close()

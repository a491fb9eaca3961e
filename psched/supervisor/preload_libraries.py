"""Loads the libraries that the children share. The master does this before it forks."""

from __future__ import annotations

import gc
import sys
from contextlib import suppress

import psched.application.conversion  # noqa: F401 – for typed functions: else 4 MB more in each child (2026-11-29)
from psched.config import Settings, preload_listeners
from psched.cron import validate
from psched.execution.opened_stores import open_sections

_EVERY_MINUTE = "* * * * *"
"""An expression that is parsed once in the master, so that children need not import the parser or open the time zone.
"""


def preload(settings: Settings) -> None:
    """Import the stores, drivers and listeners that `settings` name. Stores are opened and closed, but not connected.

    Afterwards all objects are hidden from the garbage collector: it would write to each object, and a page of memory
    that was written is no longer shared with the children. The cache of module folders is emptied, so that each child
    sees new files. Raises ConfigError for a store, driver or listener that does not exist.
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

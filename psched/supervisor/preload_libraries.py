"""Load modules before the first fork, so that all children share their memory. In the master."""

from __future__ import annotations

import gc
import sys

from psched.config import Settings
from psched.cron import validate
from psched.execution.section_sources import open_sections

_EVERY_MINUTE = "* * * * *"
"""An expression that is parsed once here, so that children need not import the parser nor open the time zone."""


def preload(settings: Settings) -> None:
    """Import the stores and drivers that `settings` name. Opens stores and closes them unused: nothing is connected.

    All objects are then hidden from the garbage collector: it writes to each object it visits, and a page that is
    written to is no longer shared. The cache of module folders is emptied, so that each child sees new files. Raises
    ConfigError for a store or driver that is not there.
    """
    _load_stores(settings)
    for _, section in settings.named_sections:
        validate(_EVERY_MINUTE, section.timezone, section.cron_dialect)
    sys.path_importer_cache.clear()
    gc.collect()
    gc.freeze()


def _load_stores(settings: Settings) -> None:
    """Open the stores and close them, in a frame of its own so that no variable keeps one alive."""
    for open_section in open_sections(settings, "preload"):
        open_section.source.store.close()

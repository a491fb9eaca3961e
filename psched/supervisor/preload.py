"""Loading what every child will need before the first is forked, so that they share its memory. In the master."""

from __future__ import annotations

import gc
import sys

from psched.config import Settings
from psched.cron import validate
from psched.execution.sections import open_sections

_SIZES = range(48, 513, 16)
_EACH = 16_384
"""Bytes of an object as Python's allocator rounds them up, and of its pools: in each there are objects of one size."""

_stopgaps: list[bytes] = []
"""What stands in the gaps for as long as the process lives: given up it would leave them as they were."""

_EVERY_MINUTE = "* * * * *"
"""An expression to read once, so that children need not learn how, nor open the time zone."""


def preload(settings: Settings) -> None:
    """Import the stores and drivers that `settings` name. Opens stores and closes them unused: nothing is connected.

    The collector leaves alone what is there then: looking at an object writes to it, and a page that is written to is
    no longer shared. What is known of folders with modules is forgotten, as each child looks at them anew. Raises
    ConfigError for a store or driver that is not there.
    """
    _load_stores(settings)
    for _, section in settings.named_sections:
        validate(_EVERY_MINUTE, section.timezone, section.cron_dialect)
    sys.path_importer_cache.clear()
    gc.collect()
    _fill_gaps()
    gc.freeze()


def _load_stores(settings: Settings) -> None:
    """Open the stores and close them; when this returns nothing holds one, and they can be collected."""
    for open_section in open_sections(settings, "preload"):
        open_section.source.store.close()


def _fill_gaps() -> None:
    """Fill what is free between the objects: new ones would be put there, each on a page that is shared until then.

    They come to stand together, on pages of their own; about as much as one pool is free of each size.
    """
    blank = sys.getsizeof(b"")
    _stopgaps.clear()
    for size in _SIZES:
        _stopgaps.extend(bytes(size - blank) for _ in range(_EACH // size))

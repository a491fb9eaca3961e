"""Loading what every child will need before the first is forked, so that they share its memory. In the master."""

from __future__ import annotations

import gc

from psched.config import Settings
from psched.daemon.worksites import open_sites


def preload(settings: Settings) -> None:
    """Import the stores and drivers that `settings` name. Opens stores and closes them unused: nothing is connected.

    The collector leaves alone what is there then: looking at an object writes to it, and a page that is written to is
    no longer shared. Raises ConfigError for a store or driver that is not there.
    """
    for site in open_sites(settings, "preload"):
        site.source.store.close()
    gc.collect()
    gc.freeze()

"""Tidying up while nothing better is to be done. Used in children and in clients that poll themselves."""

from __future__ import annotations

import logging
import math

from psched.clock import Clock, boottime
from psched.completion import Completion
from psched.store import LeaseStore

log = logging.getLogger(__name__)

_TIDYING = 1.0
"""Seconds between two looks at what can be tidied up."""
_TIDYING_SPAN = 0.05
"""Seconds that tidying up may keep a poll waiting, give or take a statement."""


class Tidying:
    """Calls what removes old rows, now and then, for a moment."""

    def __init__(self, store: LeaseStore, completion: Completion, clock: Clock = boottime) -> None:
        self._store = store
        self._completion = completion
        self._clock = clock
        self._tidied = -math.inf
        self._fails = False

    def tidy(self, idle: bool = False) -> bool:
        """Tidy up now and then, for a moment, more rarely while nothing is run. Whether it works matters to nobody.

        Returns whether there was more to be removed than that moment allowed.
        """
        now = self._clock()
        if now < self._tidied + (self._completion.tidying if idle else _TIDYING):
            return False
        self._tidied = now
        try:
            while self._completion.tidy():
                if self._clock() >= now + _TIDYING_SPAN:
                    self._tidied = -math.inf
                    return True
            self._fails = False
        except Exception as error:  # noqa: BLE001 – a poll must not fail for what it does besides
            if not self._fails and not self._store.is_unavailable(error):
                log.warning("deleting old rows failed: %s; retrying", error)
            self._fails = True
        return False

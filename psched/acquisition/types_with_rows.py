"""Chooses the types of rows to acquire: the types that have both handlers and rows."""

from __future__ import annotations

import threading
from collections.abc import Collection

from psched.acquisition.task_source import TaskSource
from psched.clock import Clock, monotonic
from psched.store import Accepts, Wakeup
from psched.store.type_filter import TypeFilter

_FRESH = 2.0
"""Seconds for which a busy worker uses the result of a look-up of types."""
_SHARE = 0.05
"""The largest share of its time that a busy worker spends on looking up types."""
_ALWAYS = 64
"""Up to this number of accepted type names, every acquire gets all names, and so finds rows of a new type at once.

With more names, an acquire gets only the types that have rows, because each name makes an acquire slower.
"""
_TOO_MANY_TYPES = 2
"""The look-ups of types end when they find more than this many types for each accepted name. From then on, queries name
all accepted types."""


class TypesWithRows:
    """Chooses which of the accepted types to acquire from one source. Safe to use from several threads.

    - A filter that accepts every type: the store gets no types.
    - A filter of a few exact names: the store gets all of them.
    - Any other filter: the store gets the accepted types that have rows. Each query for the next due time also looks up
      these types, and a busy worker looks them up every few seconds. If the filter has only exact names, and more than
      twice as many types have rows, the look-ups end. The store then gets all names.
    """

    def __init__(self, source: TaskSource, wanted: TypeFilter, clock: Clock = monotonic) -> None:
        self.wanted = wanted
        self._source = source
        self._store = source.store
        self._clock = clock
        self._lock = threading.Lock()
        self._accepts = None if wanted.is_everything else wanted.accepts
        self._selects_by_type = not wanted.is_everything and source.store.keeps_types
        is_named = len(wanted.names) <= _ALWAYS
        self._always = wanted.names if is_named else frozenset()
        self._asks_by_name = wanted.is_exact and is_named
        self._present: Collection[str] = tuple(sorted(self._always))
        self._look_at: float | None = None
        """When a busy worker looks up types again; None if it has been idle since the last look-up."""

    def prepare(self) -> None:
        """Prepare the store's statements, so that the first rows are not delayed."""
        self._store.prepare(self._present if self._selects_by_type else None)

    def to_acquire(self) -> tuple[Collection[str] | None, Accepts | None]:
        """Return the arguments `types` and `accepts` for the next `TaskSource.poll_multi`.

        After an idle time, `types` are those that the last `next_due` found.
        """
        if not self._selects_by_type:
            return None, self._accepts
        with self._lock:
            is_due = self._look_at is not None and self._clock() >= self._look_at
            if self._look_at is None:
                self._look_at = self._clock() + _FRESH
        if is_due:
            self.next_due(is_busy=True)
        return self._present, None

    def open_wakeup(self) -> Wakeup | None:
        """Return a new wake-up listener for the accepted types. Only one thread may use it."""
        return self._source.open_wakeup(self._accepts)

    def next_due(self, is_busy: bool = False) -> float | None:
        """Return the seconds until a row is due, or None if there is no row.

        Also looks up which accepted types have rows, if the filter needs this look-up. `is_busy`: whether the worker is
        busy. If so, `to_acquire` repeats the look-up after a few seconds.
        """
        if not self._selects_by_type:
            return self._store.next_due(accepts=self._accepts)
        begun = self._clock()
        if self._asks_by_name:
            present, wait = self._present, self._store.next_due(self._present)
        else:
            found = self._store.due_by_type()
            heads = {type_: due for type_, due in found.items() if self.wanted.accepts(type_)}
            present, wait = tuple(sorted(self._always | heads.keys())), min(heads.values(), default=None)
            if self.wanted.is_exact and len(found) > _TOO_MANY_TYPES * len(self.wanted.names):
                present, self._asks_by_name = tuple(sorted(self.wanted.names)), True
        now = self._clock()
        with self._lock:
            self._present = present
            self._look_at = now + max(_FRESH, (now - begun) / _SHARE) if is_busy else None
        return wait

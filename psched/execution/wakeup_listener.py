"""Listening for a store's bell, without depending on it. In children, one per lane."""

from __future__ import annotations

from collections.abc import Callable

from psched.clock import Clock, monotonic
from psched.store import Wakeup

_PATIENCE = 30.0
"""Seconds before a bell that failed is tried again; at once when it had been ringing until then."""


class WakeupListener:
    """Listens when told to. Where there is no bell, or it fails, it hears nothing; the polls go on without it."""

    def __init__(
        self, open_wakeup: Callable[[], Wakeup | None], complain: Callable[[Exception], None], clock: Clock = monotonic
    ) -> None:
        """Connects to nothing yet. `complain` is called with the first error of many."""
        self._open_bell = open_wakeup
        self._complain = complain
        self._clock = clock
        self._bell: Wakeup | None = None
        self._opened = False
        self._listening = self._connected = False
        self._deaf_until = clock()
        self._complained = False

    @property
    def called(self) -> bool:
        """Whether it listens to a bell that is known to ring."""
        return self._listening and self._bell is not None and self._bell.proven

    @property
    def can_listen(self) -> bool:
        """Whether there is a bell that it does not listen to, and that is worth a try."""
        return not self._listening and self._clock() >= self._deaf_until and not (self._opened and self._bell is None)

    @property
    def is_to_connect(self) -> bool:
        """Whether to listen means to make a connection, as far as that is known."""
        return self.can_listen and not self._connected

    @property
    def descriptor(self) -> int | None:
        """What is readable when the bell may have rung; None when it is not listened to."""
        return self._bell.fileno() if self._listening and self._bell is not None else None

    def listen(self, seconds: float) -> None:
        """Listen from now on, for `seconds` at the least; what came before was perhaps not heard."""
        if self._clock() < self._deaf_until:
            return
        try:
            if not self._opened:
                self._bell = self._open_bell()
                self._opened = True
            if self._bell is None:
                return
            self._bell.arm(seconds)
        except Exception as error:  # noqa: BLE001 – whatever a driver raises, there are polls besides
            self._failed(error)
        else:
            self._listening = self._connected = True
            self._complained = False

    def hears(self) -> bool:
        """Tell whether it has rung. A connection that is gone counts as a ring: something may have gone unheard."""
        if not self._listening or self._bell is None:
            return False
        was_called = self.called
        try:
            return self._bell.rang()
        except Exception as error:  # noqa: BLE001 – as in `listen`
            self._failed(error, patience=0.0 if was_called else _PATIENCE)
            return True

    def cover(self) -> bool:
        """Listen no more, and tell whether it did: somebody else is to hear what rings meanwhile."""
        listened = self._listening
        if listened and self._bell is not None:
            self._bell.disarm()
        self._listening = False
        return listened

    def close(self) -> None:
        """Close the bell's connection."""
        self._listening = False
        if self._bell is not None:
            self._bell.close()

    def _failed(self, error: Exception, patience: float = _PATIENCE) -> None:
        self._listening = self._connected = False
        self._deaf_until = self._clock() + patience
        if patience and not self._complained:
            self._complain(error)
            self._complained = True

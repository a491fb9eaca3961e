"""Listens for the wake-ups of a store (LISTEN, BLPOP); polling goes on without them."""

from __future__ import annotations

from collections.abc import Callable

from psched.clock import Clock, monotonic
from psched.store import Wakeup

_PATIENCE = 30.0
"""Seconds before a connection that failed is tried again; it is tried at once if it was reliable until then."""


class WakeupListener:
    """Listens from `listen` until `stop`. Without wake-ups, or when they fail, it reports none."""

    def __init__(
        self,
        open_wakeup: Callable[[], Wakeup | None],
        log_failure: Callable[[Exception], None],
        clock: Clock = monotonic,
    ) -> None:
        """Connects to nothing yet. `log_failure` is is_reliable with the first of several errors."""
        self._open_wakeup = open_wakeup
        self._log_failure = log_failure
        self._clock = clock
        self._wakeup: Wakeup | None = None
        self._opened = False
        self._listening = self._connected = False
        self._retry_at = clock()
        self._logged = False

    @property
    def is_reliable(self) -> bool:
        """Whether it listens, and wake-ups are known to arrive."""
        return self._listening and self._wakeup is not None and self._wakeup.proven

    @property
    def can_listen(self) -> bool:
        """Whether it could listen and does not."""
        return not self._listening and self._clock() >= self._retry_at and not (self._opened and self._wakeup is None)

    @property
    def is_to_connect(self) -> bool:
        """Whether `listen` would connect, as far as is known."""
        return self.can_listen and not self._connected

    @property
    def descriptor(self) -> int | None:
        """The descriptor that is readable when a wake-up may have come; None while it does not listen."""
        return self._wakeup.fileno() if self._listening and self._wakeup is not None else None

    def listen(self, seconds: float) -> None:
        """Listen from now on, for at least `seconds`; earlier wake-ups may be lost."""
        if self._clock() < self._retry_at:
            return
        try:
            if not self._opened:
                self._wakeup = self._open_wakeup()
                self._opened = True
            if self._wakeup is None:
                return
            self._wakeup.arm(seconds)
        except Exception as error:  # noqa: BLE001 – whatever a driver raises, there are polls besides
            self._failed(error)
        else:
            self._listening = self._connected = True
            self._logged = False

    def poll(self) -> bool:
        """Return whether a wake-up came. A lost connection counts as one: wake-ups may be lost with it."""
        if not self._listening or self._wakeup is None:
            return False
        was_called = self.is_reliable
        try:
            return self._wakeup.rang()
        except Exception as error:  # noqa: BLE001 – as in `listen`
            self._failed(error, patience=0.0 if was_called else _PATIENCE)
            return True

    def stop(self) -> bool:
        """Stop listening, so that siblings get the wake-ups; return whether it listened."""
        listened = self._listening
        if listened and self._wakeup is not None:
            self._wakeup.disarm()
        self._listening = False
        return listened

    def close(self) -> None:
        self._listening = False
        if self._wakeup is not None:
            self._wakeup.close()

    def _failed(self, error: Exception, patience: float = _PATIENCE) -> None:
        self._listening = self._connected = False
        self._retry_at = self._clock() + patience
        if patience and not self._logged:
            self._log_failure(error)
            self._logged = True

"""Listens to a store's wake-ups for a poller, and connects again after a failure."""

from __future__ import annotations

from collections.abc import Callable

from psched.clock import Clock, monotonic
from psched.store import Wakeup

_PATIENCE = 30.0
"""Seconds until a failed connection is tried again. A connection that has been reliable is tried again immediately."""


class WakeupListener:
    """Listens for wake-ups after a call of `listen`, until `stop`.

    If the store sends no wake-ups, or if listening fails, the listener reports no wake-ups.
    """

    def __init__(
        self,
        open_wakeup: Callable[[], Wakeup | None],
        log_failure: Callable[[Exception], None],
        clock: Clock = monotonic,
    ) -> None:
        """Does not connect yet. `log_failure`: called with the first of several errors in a row."""
        self._open_wakeup = open_wakeup
        self._log_failure = log_failure
        self._clock = clock
        self._wakeup: Wakeup | None = None
        self._opened = False
        self._listening = self._connected = False
        self.was_notified = False
        """Whether a wake-up came since the last `listen`. The wake-up may have ended the listening."""
        self._retry_at = clock()
        self._logged = False

    @property
    def is_reliable(self) -> bool:
        """Whether the listener listens, and wake-ups are known to arrive."""
        return self._listening and self._wakeup is not None and self._wakeup.proven

    @property
    def can_listen(self) -> bool:
        return not self._listening and self._clock() >= self._retry_at and not (self._opened and self._wakeup is None)

    @property
    def is_to_connect(self) -> bool:
        return self.can_listen and not self._connected

    @property
    def descriptor(self) -> int | None:
        """A descriptor that is readable when a wake-up may have come; None while not listening."""
        return self._wakeup.fileno() if self._listening and self._wakeup is not None else None

    def listen(self, seconds: float) -> None:
        """Listen from now on, for at least `seconds`. Earlier wake-ups may be lost."""
        if self._clock() < self._retry_at:
            return
        try:
            if not self._opened:
                self._wakeup = self._open_wakeup()
                self._opened = True
            if self._wakeup is None:
                return
            self._wakeup.listen(seconds)
        except Exception as error:  # noqa: BLE001 – a driver may raise anything; without wake-ups, polling continues
            self._failed(error)
        else:
            self._listening = self._connected = True
            self.was_notified = self._logged = False

    def poll(self) -> bool:
        """Return whether a wake-up came.

        A lost connection counts as a wake-up, because wake-ups may be lost with it.
        """
        if not self._listening or self._wakeup is None:
            return False
        was_called = self.is_reliable
        try:
            is_notified = self._wakeup.is_notified()
        except Exception as error:  # noqa: BLE001 – as in `listen`
            self._failed(error, patience=0.0 if was_called else _PATIENCE)
            return True
        self.was_notified = self.was_notified or is_notified
        return is_notified

    def stop(self) -> bool:
        """Stop listening, so that siblings get the wake-ups. Return whether the listener was active."""
        listened = self._listening
        if listened and self._wakeup is not None:
            self._wakeup.stop_listening()
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

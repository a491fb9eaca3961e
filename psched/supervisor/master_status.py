"""What a running master tells its commands: how the last reload and upgrade went, what troubles it, whom it awaits.

One line of JSON, the second of the pid file: written by the master, read by `pschedd reload`, `upgrade` and `status`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

_LONGEST = 1000
"""Characters of one reason: the line stays below what a reader takes at once."""
_MOST_TROUBLES = 5
_MOST_PENDING = 100
_LONGEST_END = 100


@dataclass(slots=True)
class RequestOutcomes:
    """Requests of one kind. A command reads `begun`, signals, and waits until `ended` is larger than that.

    `begun` is written before the master looks at what the request is about, so the outcome that a command takes for its
    own is of files that were read after it began. A request that comes during another one takes its place.
    """

    begun: int = 0
    ended: int = 0
    """The number of the last request that has an outcome."""
    refusal: str | None = None
    """Why that one was refused; None: it was carried out."""

    @property
    def open(self) -> bool:
        """Whether the last request has no outcome yet."""
        return self.ended < self.begun

    def begin(self) -> None:
        """Count a request."""
        self.begun += 1

    def end(self, refusal: str | None) -> None:
        """Note the outcome of the last request, if it has none yet."""
        if self.open:
            self.ended = self.begun
            self.refusal = refusal


@dataclass(frozen=True, slots=True)
class PendingWorker:
    """A slot whose next worker is not at work yet."""

    number: int
    fork_at: float | None
    """When it is forked, by the monotonic clock, which all processes of a host share; None: it is starting."""
    last_end: str
    """How the worker before it ended ("was killed by SIGSEGV"); empty when there was none, or it left in good order."""

    def text(self, now: float) -> str:
        """Return what `status` says of the slot when it has no worker yet."""
        state = "is being restarted" if self.last_end else "is being started"
        wait = 0.0 if self.fork_at is None else self.fork_at - now
        due = f" (in {wait:.1f} s)" if wait > 0 else ""
        return f"worker {self.number} {state}{due}{self.history}"

    @property
    def history(self) -> str:
        """How the worker before it ended, to be appended to a line."""
        return f"; the last one {self.last_end}" if self.last_end else ""


@dataclass(slots=True)
class MasterStatus:
    """All that the master tells."""

    reload: RequestOutcomes = field(default_factory=RequestOutcomes)
    upgrade: RequestOutcomes = field(default_factory=RequestOutcomes)
    troubles: tuple[str, ...] = ()
    """What keeps workers from working at present."""
    pending: tuple[PendingWorker, ...] = ()
    """The workers that are being started."""

    def line(self) -> str:
        """Return the report as one line."""
        return json.dumps(_shortened(asdict(self)))

    @classmethod
    def parse(cls, line: str) -> MasterStatus:
        """Return what `line` says; what cannot be read is as if nothing had been written.

        The user that the daemon runs as may write anything there, and root prints it on a terminal.
        """
        try:
            found = json.loads(line)
            return cls(
                _requests(found["reload"]),
                _requests(found["upgrade"]),
                tuple(map(_shown, found["troubles"])),
                tuple(map(_pending, found["pending"])),
            )
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return cls()


def _requests(found: Any) -> RequestOutcomes:
    refusal = found["refusal"]
    return RequestOutcomes(int(found["begun"]), int(found["ended"]), None if refusal is None else _shown(refusal))


def _pending(found: Any) -> PendingWorker:
    fork_at = found["fork_at"]
    return PendingWorker(int(found["number"]), None if fork_at is None else float(fork_at), _shown(found["last_end"]))


def _shown(text: Any) -> str:
    """Return `text` without what a terminal would obey."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in str(text))[:_LONGEST]


def _shortened(found: dict[str, Any]) -> dict[str, Any]:
    for kind in ("reload", "upgrade"):
        refusal = found[kind]["refusal"]
        found[kind]["refusal"] = None if refusal is None else refusal[:_LONGEST]
    found["troubles"] = [trouble[:_LONGEST] for trouble in found["troubles"][:_MOST_TROUBLES]]
    found["pending"] = found["pending"][:_MOST_PENDING]
    for worker in found["pending"]:
        worker["last_end"] = worker["last_end"][:_LONGEST_END]
    return found

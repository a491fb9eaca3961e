"""What a running master tells its commands: how the last reload and upgrade went, and what troubles it.

One line of JSON, the second of the pid file: written by the master, read by `pschedd reload`, `upgrade` and `status`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

_LONGEST = 1500
"""Characters of one reason: the line stays below what a reader takes at once."""
_MOST_TROUBLES = 5


@dataclass(slots=True)
class Requests:
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


@dataclass(slots=True)
class Report:
    """All that the master tells."""

    reload: Requests = field(default_factory=Requests)
    upgrade: Requests = field(default_factory=Requests)
    troubles: tuple[str, ...] = ()
    """What keeps workers from working at present."""

    def line(self) -> str:
        """Return the report as one line."""
        return json.dumps(_shortened(asdict(self)))

    @classmethod
    def parse(cls, line: str) -> Report:
        """Return what `line` says; what cannot be read is as if nothing had been written.

        The user that the daemon runs as may write anything there, and root prints it on a terminal.
        """
        try:
            found = json.loads(line)
            return cls(_requests(found["reload"]), _requests(found["upgrade"]), tuple(map(_shown, found["troubles"])))
        except (ValueError, TypeError, KeyError, RecursionError):
            return cls()


def _requests(found: Any) -> Requests:
    refusal = found["refusal"]
    return Requests(int(found["begun"]), int(found["ended"]), None if refusal is None else _shown(refusal))


def _shown(text: Any) -> str:
    """Return `text` without what a terminal would obey."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in str(text))[:_LONGEST]


def _shortened(found: dict[str, Any]) -> dict[str, Any]:
    for kind in ("reload", "upgrade"):
        refusal = found[kind]["refusal"]
        found[kind]["refusal"] = None if refusal is None else refusal[:_LONGEST]
    found["troubles"] = [trouble[:_LONGEST] for trouble in found["troubles"][:_MOST_TROUBLES]]
    return found

"""The contract of watermarks: each is the position up to which reports were sent to another program."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

WatermarkKind = Literal["trouble", "events"]
"""The kinds of watermarks.

- `trouble`: the name is the key of a schedule. The position is the last late or failed occurrence of this schedule that
  was reported.
- `events`: the name is that of a receiver of events. The position is the time up to which this receiver got the entries
  of the ledger.
"""


class Watermark(NamedTuple):
    """A watermark. Times are unix seconds.

    `since`: when the mark was created, by the database's clock. `detail`: describes the position.
    """

    kind: WatermarkKind
    name: str
    position: float
    detail: str
    since: float


class Watermarks(Protocol):
    """The watermarks of one table. Methods are safe to call from any thread and raise the driver's errors."""

    def raise_to(self, kind: WatermarkKind, name: str, position: float, detail: str = "") -> None:
        """Create the mark, or raise it to `position` and replace its detail. A mark is never lowered.

        `detail`: at most 300 characters.
        """

    def page(self, kind: WatermarkKind, after: str, limit: int) -> list[Watermark]:
        """Return up to `limit` marks whose names come after `after`, in the order of names."""

    def claim(self, mark: Watermark, claimer: str, seconds: float) -> bool:
        """Claim for `seconds` the right to report for this mark. Only one claimer at a time gets True.

        Return False if the mark has changed or does not exist. The claimer that got True may claim again; with 0
        seconds, this ends its claim.
        """

    def remove(self, mark: Watermark) -> None:
        """Delete the mark if it has not changed."""

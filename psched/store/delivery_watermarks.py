"""The contract of watermarks: how far something has been reported to the outside, remembered by the database."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

WatermarkKind = Literal["trouble", "events"]
"""`trouble`: the name is the key of a schedule that was late or failed, the position its last such occurrence.
`events`: the name is a receiver of events, the position the time up to which entries of the ledger were sent to it."""


class Watermark(NamedTuple):
    """Times are unix seconds. `since`: when the mark was made, on the database's clock; `detail`: kept from then."""

    kind: WatermarkKind
    name: str
    position: float
    detail: str
    since: float


class Watermarks(Protocol):
    """The watermarks of one table. Methods are safe in any thread and raise the driver's errors."""

    def raise_to(self, kind: WatermarkKind, name: str, position: float, detail: str = "") -> None:
        """Make the mark, or move it up to `position`. A mark never moves down."""

    def page(self, kind: WatermarkKind, after: str, limit: int) -> list[Watermark]:
        """Return up to `limit` marks whose name comes after `after`, in the order of names."""

    def claim(self, mark: Watermark, claimer: str, seconds: float) -> bool:
        """Claim the right to report. Return True for one claimer at a time, which may claim again.

        False if the mark has moved or is gone.
        """

    def remove(self, mark: Watermark) -> None:
        """Delete the mark, unless it has moved."""

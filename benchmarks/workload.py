"""Workloads, contenders, and the scale of measurements: classes without behaviour."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.databases import STORES, Place


@dataclass(frozen=True)
class Scale:
    """How large the measurements are. `quick`: small ones, which only show that everything works."""

    quick: bool

    def count(self, full: int) -> int:
        """Return the number of items to measure, given the full number."""
        return max(1, full // 20) if self.quick else full

    def seconds(self, full: float) -> float:
        """Return the seconds of a measurement, given the full time."""
        return full / 5 if self.quick else full


Measure = Callable[[Place, Scale], Mapping[str, float]]
"""Measures once, at a place, and returns a value for each metric."""


@dataclass(frozen=True)
class Contender:
    """What does a workload: psched, a floor or a peer. `setting`: how the contender does it, if there is a choice.

    `lasting`: all rounds use the same place, with what the previous round has left there. `once`: measured in the first
    round only.
    """

    name: str
    measure: Measure
    stores: tuple[str, ...] = STORES
    setting: str = ""
    peer: bool = False
    lasting: bool = False
    once: bool = False


@dataclass(frozen=True)
class Workload:
    """One kind of work, which all contenders do. `what`: the end of a sentence that begins with "it measures".

    `side_by_side`: the contenders nearly always wait. So psched runs with all stores at the same time, and so do peers.
    """

    name: str
    what: str
    contenders: tuple[Contender, ...]
    side_by_side: bool = False

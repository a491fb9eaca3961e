"""A workload, and how much of it is done. Values only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.databases import STORES, Place


@dataclass(frozen=True)
class Scale:
    """How large the measurements are; `quick` ones show that all works, and no more."""

    quick: bool

    def count(self, full: int) -> int:
        """Return how many of something are measured."""
        return max(1, full // 20) if self.quick else full

    def seconds(self, full: float) -> float:
        """Return how long something is measured."""
        return full / 5 if self.quick else full


Measure = Callable[[Place, Scale], Mapping[str, float]]
"""Measures once, at a fresh place; returns values by the name of the metric."""


@dataclass(frozen=True)
class Contender:
    """Who does a workload: psched, a floor, a peer. `setting` says how, where there is a choice.

    With `lasting` all rounds are at one place, which is as the one before has left it; with `once` there is no round
    but the first.
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
    """One thing to be done, by all contenders alike. `what` completes the sentence: it measures …

    What is `side_by_side` waits nearly all the time; there psched is measured on all stores at once, and so are peers.
    """

    name: str
    what: str
    contenders: tuple[Contender, ...]
    side_by_side: bool = False

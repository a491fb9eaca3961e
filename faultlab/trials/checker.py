"""The checker of a trial: a pure function from its history to the violations found in it. In the test process.

Nothing is excused but by a declared fault that touched the run, and an overlap only where the first run stood still.
A run counts as alive as long as it gave signs of it, so whoever is accused of an overlap was seen at work.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain, pairwise

from faultlab.trials.history import (
    BY_ITSELF,
    EXITED,
    REFILLED,
    Declared,
    Every,
    History,
    RecordedRun,
    is_lane,
    only_node,
)
from faultlab.trials.optioned_schedules import faults_of

LOST = "lost"
DOUBLED = "doubled without cause"
OVERLAPPED = "overlapped while its holder lived"
EARLY = "early"
DISORDERED = "out of order"
USURPED = "settled by a non-holder"
STUCK = "never recovered"
UNASKED = "run though nobody asked"
MISROUTED = "run by a node that does not route it"
MISRECORDED = "on record otherwise than it ran"
DISOBEYED = "not as its options say"
VACUOUS = "vacuous"

KINDS = (
    LOST,
    DOUBLED,
    OVERLAPPED,
    EARLY,
    DISORDERED,
    USURPED,
    STUCK,
    UNASKED,
    MISROUTED,
    MISRECORDED,
    DISOBEYED,
    VACUOUS,
)

_SAME_MOMENT = 0.05
"""Seconds by which two clocks of one host may seem to differ when both are read."""


@dataclass(frozen=True)
class Bounds:
    """What the judge goes by, all in seconds but `runs`.

    `aftermath`: how long after a fault was healed it may still cut a run off; `awakening`: how long a thawed process
    may need to learn that it has lost its lease; `recovery`: how long after the last fault all that is due by then may
    take, besides the runs of a schedule that is behind. A history with fewer than `runs` runs proves nothing.
    """

    aftermath: float = 5.0
    awakening: float = 2.0
    recovery: float = 30.0
    runs: int = 50


@dataclass(frozen=True)
class TrialViolation:
    """One promise that was broken: which (one of `KINDS`), for which key, and how it shows."""

    kind: str
    key: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.key}: {self.evidence}"


@dataclass(frozen=True)
class HistoryChecker:
    """Judges one history."""

    history: History
    bounds: Bounds = field(default_factory=Bounds)

    def violations(self) -> list[TrialViolation]:
        """Return all that is wrong; nothing, when every promise was kept and the history is worth a verdict."""
        found = list(self._vacuous())
        by_key = self.history.by_key()
        for key, every in self.history.schedules.items():
            found += chain(self._unrun(key, every, by_key.get(key, [])), self._backward(by_key.get(key, [])))
        for key, runs in by_key.items():
            found += chain(self._unasked(key), self._misrouted(runs))
            found += chain(self._early(runs), self._overlapping(runs), self._reused(runs))
            found += chain(self._repeated(runs), self._usurped(runs))
            found += self._passed_over(runs) if is_lane(key) else ()
        found += self._forgotten(by_key)
        found += self._stored(by_key)
        found += self._misrecorded()
        return found

    def pending(self) -> bool:
        """Tell whether something is not done yet that was due when it was calm."""
        by_key = self.history.by_key()
        unrun = (self._unrun(key, every, by_key.get(key, [])) for key, every in self.history.schedules.items())
        return any(True for _ in chain(self._forgotten(by_key), *unrun))

    def backlog(self) -> float:
        """Return how many seconds of work the schedule has before it that is furthest behind when it is calm."""
        by_key, idle = self.history.by_key(), int(self.history.boot + self.history.idle)
        work = 0.0
        for key, every in self.history.schedules.items():
            complete = {run.occurrence for run in by_key.get(key, []) if run.end is not None}
            behind = sum(due not in complete for due in self._required(key, every, idle))
            work = max(work, behind * every.work)
        return work

    # What explains what

    @cached_property
    def _exits(self) -> Mapping[tuple[str, int], Sequence[float]]:
        """By node and pid, when runs ended their process, which others may have shared."""
        found: dict[tuple[str, int], list[float]] = defaultdict(list)
        for run in self.history.runs:
            if run.outcome == EXITED:
                found[run.node, run.pid].append(run.seen)
        return found

    def _explained(self, run: RecordedRun, until: float) -> bool:
        """Tell whether a fault touched the run between its beginning and `until`, and may have cut it off.

        So may another run of its process that ended that, by its own record: such a one may be run late.
        """
        return any(run.begin <= moment <= until for moment in self._exits.get((run.node, run.pid), ())) or any(
            fault.excuses
            and fault.touches(run)
            and fault.begin <= until
            and run.begin <= fault.until + self.bounds.aftermath
            for fault in self.history.faults
        )

    def _timed_out(self, run: RecordedRun, until: float) -> bool:
        """Tell whether the run may have been ended by the time limit of its schedule, while it settled."""
        schedule = self.history.optioned.get(run.key)
        limit = None if schedule is None else schedule.options["timeout"]
        return limit is not None and not run.finished and until >= run.begin + limit

    def _frozen(self, run: RecordedRun, moment: float) -> bool:
        """Tell whether the run's process stood still then, or had only just woken up."""
        return any(
            fault.froze and fault.touches(run) and fault.begin <= moment <= fault.until + self.bounds.awakening
            for fault in self.history.faults
        )

    def _overslept(self, run: RecordedRun, before: RecordedRun) -> bool:
        """Tell whether the run was acquired before the one that began earlier, and stood still until now."""
        acquired_first = run.fence is None or before.fence is None or run.fence < before.fence
        return acquired_first and self._frozen(run, run.begin)

    # The promises

    def _vacuous(self) -> Iterator[TrialViolation]:
        history = self.history
        if len(history.runs) < self.bounds.runs:
            yield TrialViolation(VACUOUS, "*", f"{len(history.runs)} runs, at least {self.bounds.runs} make a trial")
        if not history.faults:
            yield TrialViolation(VACUOUS, "*", "no fault was declared")
        for fault in history.faults:
            if not any(fault.begin - self.bounds.recovery <= run.begin <= fault.until for run in history.runs):
                yield TrialViolation(VACUOUS, "*", f"nothing was at work when {fault.kind} began")
        if history.submissions and not any(task.acknowledged for task in history.submissions.values()):
            yield TrialViolation(VACUOUS, "*", "no submit was acknowledged")

    def _required(self, key: str, every: Every, until: int) -> Iterator[int]:
        """Yield the occurrences up to `until` that must be done: all but those that may have come in a pause."""
        actions = self.history.actions_on(key)
        return (due for due in range(every.first, until + 1, every.seconds) if not actions.maybe_paused(due))

    def _unrun(self, key: str, every: Every, runs: Sequence[RecordedRun]) -> Iterator[TrialViolation]:
        """An occurrence that was passed over is lost; the ones at the end are late, up to a bound."""
        actions = self.history.actions_on(key)
        complete = {run.occurrence for run in runs if run.end is not None}
        reached = max((due for due in complete if every.has(due)), default=every.first - every.seconds)
        for occurrence in self._required(key, every, reached - 1):
            if occurrence not in complete:
                yield TrialViolation(LOST, key, f"{occurrence} was never done, though {reached} was")
        for run in runs:
            if actions.maybe_asked(run):
                continue
            if not every.has(run.occurrence):
                yield TrialViolation(UNASKED, key, f"{run.occurrence} is no occurrence")
            elif actions.surely_paused(run.occurrence):
                yield TrialViolation(UNASKED, key, f"{run.occurrence} came in a pause")
        for action in actions.unanswered(runs):
            yield TrialViolation(LOST, key, f"run-now was done at {action.ended:.3f}, and nothing ran")
        idle = int(self.history.boot + self.history.idle)
        if any(due > reached for due in self._required(key, every, idle)):
            behind = self.history.boot + self.history.over - reached
            yield TrialViolation(STUCK, key, f"it stands at {reached}, {behind:.1f} s before the end")

    def _forgotten(self, by_key: dict[str, list[RecordedRun]]) -> Iterator[TrialViolation]:
        """A task whose submit was acknowledged must be done at the end."""
        for key, task in self.history.submissions.items():
            idle = self.history.boot + self.history.idle
            if task.acknowledged is None or max(task.run_at, self.history.boot + task.acknowledged) > idle:
                continue
            runs = by_key.get(key, [])
            if not any(run.end is not None for run in runs):
                yield TrialViolation(
                    LOST, key, f"committed at {task.acknowledged:.3f}, never done ({len(runs)} runs begun)"
                )

    def _unasked(self, key: str) -> Iterator[TrialViolation]:
        history = self.history
        if is_lane(key) and history.optioned:
            return
        if key not in history.schedules and key not in history.submissions and key not in history.optioned:
            yield TrialViolation(UNASKED, key, "no submitter has tried it")

    def _passed_over(self, runs: Sequence[RecordedRun]) -> Iterator[TrialViolation]:
        """The rows of a backfill do one occurrence after another; those of an hourly schedule follow in an hour."""
        done = sorted({run.occurrence for run in runs if run.end is not None})
        for before, occurrence in pairwise(done):
            if occurrence != before + 3600:
                yield TrialViolation(LOST, runs[0].key, f"{occurrence} follows {before}")

    def _misrouted(self, runs: Sequence[RecordedRun]) -> Iterator[TrialViolation]:
        for run in runs:
            node = only_node(run.key)
            if node is not None and run.node != node:
                yield TrialViolation(MISROUTED, run.key, f"{run.occurrence} was begun on {run.node!r}")

    def _early(self, runs: Sequence[RecordedRun]) -> Iterator[TrialViolation]:
        for run in runs:
            task = self.history.submissions.get(run.key)
            late = self.history.late(run) if task is None else self.history.boot + run.begin - task.run_at
            if late < -_SAME_MOMENT:
                yield TrialViolation(EARLY, run.key, f"{run.occurrence} began {-late:.3f} s early")

    def _overlapping(self, runs: Sequence[RecordedRun]) -> Iterator[TrialViolation]:
        alive: list[RecordedRun] = []
        for run in runs:
            alive = [before for before in alive if before.seen > run.begin]
            for before in alive:
                if not self._frozen(before, run.begin):
                    evidence = f"{run.pid} began {run.occurrence} at {run.begin:.3f}, {before.pid} worked"
                    yield TrialViolation(
                        OVERLAPPED, run.key, f"{evidence} from {before.begin:.3f} to {before.seen:.3f}"
                    )
            alive.append(run)

    def _backward(self, runs: Sequence[RecordedRun]) -> Iterator[TrialViolation]:
        for before, run in pairwise(runs):
            if run.occurrence < before.occurrence and not self._frozen(run, run.begin):
                yield TrialViolation(DISORDERED, run.key, f"{run.occurrence} was begun after {before.occurrence}")

    def _reused(self, runs: Sequence[RecordedRun]) -> Iterator[TrialViolation]:
        """Whoever begins later has the greater fence, unless it slept between the two."""
        for before, run in pairwise(runs):
            if before.fence is None or run.fence is None or run.fence > before.fence:
                continue
            if run.fence == before.fence or not self._frozen(run, run.begin):
                yield TrialViolation(DISORDERED, run.key, f"the fence {run.fence} began after {before.fence}")

    def _repeated(self, runs: Sequence[RecordedRun]) -> Iterator[TrialViolation]:
        """Each run but an occurrence's last must have been cut off by a fault, or have failed by itself."""
        later: dict[int, RecordedRun] = {}
        for run in reversed(runs):
            again = later.get(run.occurrence)
            later[run.occurrence] = run
            if again is None or run.outcome in BY_ITSELF or self._overslept(again, run):
                continue
            if self.history.actions_on(run.key).maybe_asked(again) or self._timed_out(run, again.begin):
                continue
            if run.finished or not self._explained(run, again.begin):
                what = f"{run.outcome or 'not settled'} in {run.pid} of {run.node!r}, begun {run.begin:.3f}"
                yield TrialViolation(
                    DOUBLED, run.key, f"{run.occurrence} again at {again.begin:.3f} after it was {what}"
                )

    def _usurped(self, runs: Sequence[RecordedRun]) -> Iterator[TrialViolation]:
        """Nobody finishes once a later holder has begun."""
        begins = [run.begin for run in runs]
        greatest = list(accumulate((-1 if run.fence is None else run.fence for run in runs), max))
        for run in runs:
            if not run.finished or run.fence is None or run.end is None:
                continue
            begun = greatest[max(bisect_left(begins, run.end) - 1, 0)]
            if begun > run.fence:
                evidence = f"{run.pid} finished with fence {run.fence} after {begun} had begun"
                yield TrialViolation(USURPED, run.key, evidence)

    def _stored(self, by_key: dict[str, list[RecordedRun]]) -> Iterator[TrialViolation]:
        """The fence that a finished task keeps is that of whoever finished it, or at least did it."""
        for key, fence in self.history.fences.items():
            runs = by_key.get(key, [])
            claimed = {run.fence for run in runs if run.finished} or {run.fence for run in runs if run.end is not None}
            surely = any(run.finished for run in runs)
            if fence not in claimed or (surely and len(claimed) > 1):
                yield TrialViolation(
                    USURPED, key, f"it was finished with fence {fence}, done by {sorted(map(str, claimed))}"
                )

    def _misrecorded(self) -> Iterator[TrialViolation]:
        """The ledger has what handlers did, under their fences, nothing else, and the audit agrees."""
        proof = self.history.proof
        if proof is None:
            return
        if not proof.entries:
            yield TrialViolation(VACUOUS, "*", "nothing is on record")
        keys = self.history.schedules.keys() | self.history.optioned.keys() | {REFILLED}
        named = (replace(run, key=REFILLED) if is_lane(run.key) else run for run in self.history.runs)
        runs = [run for run in named if run.key in keys]
        done = {(run.key, run.occurrence, run.fence) for run in runs if run.end is not None}
        recorded = Counter((entry.key, entry.occurrence, entry.fence) for entry in proof.entries)
        for (key, occurrence, fence), count in recorded.items():
            if (key, occurrence, fence) not in done or count > 1:
                yield TrialViolation(
                    MISRECORDED, key, f"{occurrence} under {fence} is on record {count} times, done or not"
                )
        for run in runs:
            if run.finished and (run.key, run.occurrence, run.fence) not in recorded:
                yield TrialViolation(MISRECORDED, run.key, f"{run.occurrence} was finished under {run.fence}: no entry")
        yield from (TrialViolation(MISRECORDED, key, f"psched audit: {what}") for key, what in proof.complaints)
        broken = faults_of(self.history.optioned, proof.settled, proof.changes)
        yield from (TrialViolation(DISOBEYED, key, what) for key, what in broken)


def recoveries(history: History, late: float = 1.0, idle: float = 3.0) -> dict[str, list[float]]:
    """Return for each kind of fault how many seconds after each healing the last run began late by more than `late`.

    0.0: nothing was late any more. It is over when nothing was late for `calm` seconds: what comes then is the
    machine's doing. Only for faults that no other one overlaps, up to the next one's beginning. The schedules that fire
    most often tell: the others may be in each other's way without any fault.
    """
    found: dict[str, list[float]] = {}
    faults = sorted(history.faults, key=lambda fault: fault.begin)
    often = min(every.seconds for every in history.schedules.values())
    keys = {key for key, every in history.schedules.items() if every.seconds == often}
    lates = sorted(run.begin for run in history.runs if run.key in keys and history.late(run) > late)
    for number, fault in enumerate(faults):
        horizon = faults[number + 1].begin if number + 1 < len(faults) else history.over
        if horizon < fault.until or any(_overlap(fault, other) for other in faults[:number]):
            continue
        last = fault.until
        for begin in lates:
            if last <= begin < min(horizon, last + idle):
                last = begin
        found.setdefault(fault.kind, []).append(last - fault.until)
    return found


def _overlap(one: Declared, other: Declared) -> bool:
    return one.begin <= other.until and other.begin <= one.until

"""The checker of a trial: a pure function that finds violations in a trial's history. Runs in the test process.

A violation is excused only by a declared fault that touched the run. An overlap is excused only if the first run was
frozen. A run counts as alive only until its last sign of life, so overlaps are never reported by mistake.
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
UNASKED = "run without a request"
MISROUTED = "run by a node that does not route it"
MISRECORDED = "recorded otherwise than it ran"
DISOBEYED = "run otherwise than its options say"
VACUOUS = "proves nothing"

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
"""Seconds by which two clocks of one host may seem to differ, because they are not read at the same time."""


@dataclass(frozen=True)
class Bounds:
    """The bounds by which a history is judged, in seconds except for `runs`.

    `aftermath`: for how long after its healing a fault may still cut off a run. `awakening`: for how long after its
    thawing a process may not know yet that it has lost its lease. `recovery`: how long after the last fault the due
    runs may take, besides the runs of a schedule that is behind. `runs`: a history with fewer runs proves nothing.
    """

    aftermath: float = 5.0
    awakening: float = 2.0
    recovery: float = 30.0
    runs: int = 50


@dataclass(frozen=True)
class TrialViolation:
    """One broken promise: its kind (one of `KINDS`), the key, and the evidence."""

    kind: str
    key: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.key}: {self.evidence}"


@dataclass(frozen=True)
class HistoryChecker:
    """Finds the violations in one history."""

    history: History
    bounds: Bounds = field(default_factory=Bounds)

    def violations(self) -> list[TrialViolation]:
        """Return all violations. The list is empty if every promise was kept, and if the history proves something."""
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
        """Return whether a run has not ended that was due when the last fault was healed."""
        by_key = self.history.by_key()
        unrun = (self._unrun(key, every, by_key.get(key, [])) for key, every in self.history.schedules.items())
        return any(True for _ in chain(self._forgotten(by_key), *unrun))

    def backlog(self) -> float:
        """Return how many seconds of work a schedule had to catch up on, at most, when the last fault was healed."""
        by_key, idle = self.history.by_key(), int(self.history.boot + self.history.idle)
        work = 0.0
        for key, every in self.history.schedules.items():
            complete = {run.occurrence for run in by_key.get(key, []) if run.end is not None}
            behind = sum(due not in complete for due in self._required(key, every, idle))
            work = max(work, behind * every.work)
        return work

    # Which faults explain what

    @cached_property
    def _exits(self) -> Mapping[tuple[str, int], Sequence[float]]:
        """By node and pid, the times at which runs ended their process. The process may have had other runs."""
        found: dict[tuple[str, int], list[float]] = defaultdict(list)
        for run in self.history.runs:
            if run.outcome == EXITED:
                found[run.node, run.pid].append(run.seen)
        return found

    def _explained(self, run: RecordedRun, until: float) -> bool:
        """Return whether a fault may have cut off the run between its start and `until`.

        Another run of the same process may have cut it off, too, if that run has recorded that it ends the process.
        """
        return any(run.begin <= moment <= until for moment in self._exits.get((run.node, run.pid), ())) or any(
            fault.excuses
            and fault.touches(run)
            and fault.begin <= until
            and run.begin <= fault.until + self.bounds.aftermath
            for fault in self.history.faults
        )

    def _timed_out(self, run: RecordedRun, until: float) -> bool:
        """Return whether the time limit of the run's schedule may have ended the run while it was being settled."""
        schedule = self.history.optioned.get(run.key)
        limit = None if schedule is None else schedule.options["timeout"]
        return limit is not None and not run.finished and until >= run.begin + limit

    def _frozen(self, run: RecordedRun, moment: float) -> bool:
        """Return whether the run's process was frozen at `moment`, or had been thawed just before."""
        return any(
            fault.froze and fault.touches(run) and fault.begin <= moment <= fault.until + self.bounds.awakening
            for fault in self.history.faults
        )

    def _overslept(self, run: RecordedRun, before: RecordedRun) -> bool:
        """Return whether `run` was acquired before `before`, but then frozen, so that it began later."""
        acquired_first = run.fence is None or before.fence is None or run.fence < before.fence
        return acquired_first and self._frozen(run, run.begin)

    # The promises

    def _vacuous(self) -> Iterator[TrialViolation]:
        history = self.history
        if len(history.runs) < self.bounds.runs:
            yield TrialViolation(VACUOUS, "*", f"{len(history.runs)} runs; expected at least {self.bounds.runs}")
        if not history.faults:
            yield TrialViolation(VACUOUS, "*", "no fault was declared")
        for fault in history.faults:
            if not any(fault.begin - self.bounds.recovery <= run.begin <= fault.until for run in history.runs):
                yield TrialViolation(VACUOUS, "*", f"no run began shortly before or during the fault {fault.kind!r}")
        if history.submissions and not any(task.acknowledged for task in history.submissions.values()):
            yield TrialViolation(VACUOUS, "*", "no submit was acknowledged")

    def _required(self, key: str, every: Every, until: int) -> Iterator[int]:
        """Yield the occurrences up to `until` that must have run: all except those that may have come in a pause."""
        actions = self.history.actions_on(key)
        return (due for due in range(every.first, until + 1, every.seconds) if not actions.maybe_paused(due))

    def _unrun(self, key: str, every: Every, runs: Sequence[RecordedRun]) -> Iterator[TrialViolation]:
        """Find occurrences that were passed over, or not reached in the end, and runs without an occurrence."""
        actions = self.history.actions_on(key)
        complete = {run.occurrence for run in runs if run.end is not None}
        reached = max((due for due in complete if every.has(due)), default=every.first - every.seconds)
        for occurrence in self._required(key, every, reached - 1):
            if occurrence not in complete:
                yield TrialViolation(LOST, key, f"{occurrence} never ran, but {reached} did")
        for run in runs:
            if actions.maybe_asked(run):
                continue
            if not every.has(run.occurrence):
                yield TrialViolation(UNASKED, key, f"{run.occurrence} is no occurrence")
            elif actions.surely_paused(run.occurrence):
                yield TrialViolation(UNASKED, key, f"{run.occurrence} came in a pause")
        for action in actions.unanswered(runs):
            yield TrialViolation(LOST, key, f"run-now succeeded at {action.ended:.3f}, but no run followed")
        idle = int(self.history.boot + self.history.idle)
        if any(due > reached for due in self._required(key, every, idle)):
            behind = self.history.boot + self.history.over - reached
            yield TrialViolation(
                STUCK, key, f"its last occurrence that ran is {reached}, {behind:.1f} s before the end"
            )

    def _forgotten(self, by_key: dict[str, list[RecordedRun]]) -> Iterator[TrialViolation]:
        """Find acknowledged tasks that were due but have not run."""
        for key, task in self.history.submissions.items():
            idle = self.history.boot + self.history.idle
            if task.acknowledged is None or max(task.run_at, self.history.boot + task.acknowledged) > idle:
                continue
            runs = by_key.get(key, [])
            if not any(run.end is not None for run in runs):
                yield TrialViolation(
                    LOST, key, f"committed at {task.acknowledged:.3f}, but never ran to its end ({len(runs)} runs)"
                )

    def _unasked(self, key: str) -> Iterator[TrialViolation]:
        history = self.history
        if is_lane(key) and history.optioned:
            return
        if key not in history.schedules and key not in history.submissions and key not in history.optioned:
            yield TrialViolation(UNASKED, key, "no submitter has submitted it")

    def _passed_over(self, runs: Sequence[RecordedRun]) -> Iterator[TrialViolation]:
        """Find occurrences that rows of a backfill have passed over.

        The rule is hourly, and a row runs its occurrences in order.
        """
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
        """Find runs whose fence is not greater than the fence of the previous run.

        Excuse runs that were frozen in between.
        """
        for before, run in pairwise(runs):
            if before.fence is None or run.fence is None or run.fence > before.fence:
                continue
            if run.fence == before.fence or not self._frozen(run, run.begin):
                yield TrialViolation(DISORDERED, run.key, f"fence {run.fence} began after fence {before.fence}")

    def _repeated(self, runs: Sequence[RecordedRun]) -> Iterator[TrialViolation]:
        """Find occurrences that ran again without a reason.

        The reason may be a fault that has cut off the previous run, or a previous run that has failed by itself.
        """
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
                    DOUBLED, run.key, f"{run.occurrence} ran again at {again.begin:.3f}, after it was {what}"
                )

    def _usurped(self, runs: Sequence[RecordedRun]) -> Iterator[TrialViolation]:
        """Find runs that finished although a run with a greater fence had begun before."""
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
        """Find finished tasks whose stored fence is not the fence of the run that finished them."""
        for key, fence in self.history.fences.items():
            runs = by_key.get(key, [])
            claimed = {run.fence for run in runs if run.finished} or {run.fence for run in runs if run.end is not None}
            surely = any(run.finished for run in runs)
            if fence not in claimed or (surely and len(claimed) > 1):
                yield TrialViolation(USURPED, key, f"stored fence {fence}, but it ran with {sorted(map(str, claimed))}")

    def _misrecorded(self) -> Iterator[TrialViolation]:
        """Find differences between the ledger and the runs of handlers.

        Also yields the violations that psched's audit has found, and broken rules of drawn options.
        """
        proof = self.history.proof
        if proof is None:
            return
        if not proof.entries:
            yield TrialViolation(VACUOUS, "*", "the ledger is empty")
        keys = self.history.schedules.keys() | self.history.optioned.keys() | {REFILLED}
        named = (replace(run, key=REFILLED) if is_lane(run.key) else run for run in self.history.runs)
        runs = [run for run in named if run.key in keys]
        done = {(run.key, run.occurrence, run.fence) for run in runs if run.end is not None}
        recorded = Counter((entry.key, entry.occurrence, entry.fence) for entry in proof.entries)
        for (key, occurrence, fence), count in recorded.items():
            if (key, occurrence, fence) not in done or count > 1:
                yield TrialViolation(
                    MISRECORDED, key, f"{occurrence} with fence {fence} is recorded {count} times, or has not run"
                )
        for run in runs:
            if run.finished and (run.key, run.occurrence, run.fence) not in recorded:
                yield TrialViolation(
                    MISRECORDED, run.key, f"{run.occurrence} was finished with fence {run.fence}, but has no entry"
                )
        yield from (TrialViolation(MISRECORDED, key, f"psched audit: {what}") for key, what in proof.complaints)
        broken = faults_of(self.history.optioned, proof.settled, proof.changes)
        yield from (TrialViolation(DISOBEYED, key, what) for key, what in broken)


def recoveries(history: History, late: float = 1.0, idle: float = 3.0) -> dict[str, list[float]]:
    """Return, for each kind of fault, how many seconds after each healing the last late run began.

    A run is late if it began more than `late` seconds after its time. 0.0: no run was late after the healing. The
    recovery is over if no late run begins for `idle` seconds, because later lateness is caused by the machine. Only
    faults that overlap no earlier fault are measured, up to the beginning of the next fault. Only the schedules with
    the shortest interval are used, because the others may delay each other even without faults.
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

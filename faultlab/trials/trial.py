"""One trial: planned faults during normal work, a time without faults, and the verdict. Runs in the test process."""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from faultlab.trials.checker import STUCK, Bounds, HistoryChecker, TrialViolation, recoveries
from faultlab.trials.environment import TrialEnvironment
from faultlab.trials.fault import TrialFault
from faultlab.trials.history import Declared, History, read_actions, read_runs, read_submissions, write_faults
from faultlab.trials.plan import Pace, PlannedFault
from faultlab.trials.schedule_operator import ScheduleOperator
from faultlab.trials.submitter import Submitter
from psched.clock import boottime

TICK = 0.25
"""Seconds between two looks at the plan."""


@dataclass(frozen=True)
class TrialOutcome:
    """The outcome of a trial."""

    title: str
    history: History
    violations: Sequence[TrialViolation]

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        history = self.history
        tries = len({(run.key, run.occurrence) for run in history.runs})
        acknowledged = sum(task.acknowledged is not None for task in history.submissions.values())
        yield f"{self.title}: {'FAILED' if self.violations else 'passed'}"
        verbs = Counter(action.verb for action in history.actions if action.done)
        yield "  an operator did " + (
            ", ".join(f"{count} × {verb}" for verb, count in sorted(verbs.items())) or "nothing"
        )
        yield f"  {len(history.runs)} runs of {tries} occurrences and tasks; {acknowledged} submits were acknowledged"
        yield from self._survived()
        for kind, count in Counter(violation.kind for violation in self.violations).items():
            yield f"  {kind}: {count}"
        yield from (f"    {violation}" for violation in self.violations[:40])

    def _survived(self) -> Iterator[str]:
        times = Counter(fault.kind for fault in self.history.faults)
        recovered = recoveries(self.history)
        for kind, count in sorted(times.items()):
            seconds = recovered.get(kind)
            how = f"p50 {statistics.median(seconds):4.1f} s, max {max(seconds):4.1f} s" if seconds else "only mixed"
            yield f"  {count:3} × {kind:52} recovery: {how}"


class Trial:
    """Carries out a plan in an environment."""

    def __init__(self, environment: TrialEnvironment, steps: Sequence[PlannedFault], seed: int, bounds: Bounds) -> None:
        self.environment = environment
        self.steps = steps
        self.seed = seed
        self.bounds = bounds
        self.declared: list[Declared] = []
        self._submissions = environment.folder / "submissions"
        self._actions = environment.folder / "actions"

    def run(self) -> TrialOutcome:
        """Run the whole trial. Raises AssertionError if masters do not stop in the end."""
        seed, environment = str(self.seed), self.environment
        with Submitter(environment.queue, self._submissions, seed, environment.longest, environment.nodes) as submitter:
            optioned = [*environment.optioned]
            with ScheduleOperator(environment.collection, environment.operated, self._actions, seed, optioned):
                self._strike(submitter)
            idle = boottime()
            environment.end_backfill()
            self._catch_up(idle)
        over = boottime()
        for node in self.environment.nodes.values():
            node.stop()
        known = self._history(idle)
        # Runs that were due after `idle` need not have ended before the masters stopped.
        proof = self.environment.proof(known.boot + idle)
        history = replace(known, over=over, fences=self.environment.stored_fences(), proof=proof)
        write_faults(self.environment.folder / "faults", self.declared)
        title = f"{self.environment.store} ({self.environment.type}), seed {self.seed}, {len(self.declared)} faults"
        violations = HistoryChecker(history, self.bounds).violations()
        return TrialOutcome(title, history, [self._with_row(violation) for violation in violations])

    def _with_row(self, violation: TrialViolation) -> TrialViolation:
        """Add the row of a stuck schedule to the evidence, because the database is gone after the trial."""
        if violation.kind != STUCK:
            return violation
        now, row = self.environment.collection.store.now(), self.environment.collection.store.get(violation.key)
        return replace(violation, evidence=f"{violation.evidence}; at {now:.3f} its row is {row}")

    def _catch_up(self, idle: float) -> None:
        """Wait until all runs that were due at `idle` have ended, or the maximum wait is over.

        A schedule runs one occurrence after another, so the maximum wait includes the work that a schedule has to catch
        up on.
        """
        patience = self.bounds.recovery + HistoryChecker(self._history(idle), self.bounds).backlog()
        while boottime() < idle + patience and self._is_pending(idle):
            self._bring_back()
            time.sleep(1)

    def _is_pending(self, idle: float) -> bool:
        if HistoryChecker(self._history(idle), self.bounds).pending():
            return True
        return self.environment.has_due_options(time.time() - boottime() + idle)

    def _bring_back(self) -> None:
        for node in self.environment.nodes.values():
            node.bring_back()

    def _history(self, idle: float) -> History:
        """Return the history up to now."""
        runs, submissions = read_runs(self.environment.records), read_submissions([self._submissions])
        boot = time.time() - boottime()
        actions = read_actions(self._actions) if self._actions.exists() else []
        return History(
            runs,
            self.environment.schedules,
            submissions,
            self.declared,
            boot,
            idle,
            boottime(),
            actions=actions,
            optioned=self.environment.optioned,
        )

    def _strike(self, submitter: Submitter) -> None:
        """Begin and heal all faults at their times."""
        pace = Pace(2 * TICK)
        waiting, active = sorted(self.steps, key=lambda step: step.at), dict[TrialFault, float]()
        try:
            while waiting or active:
                now = pace.now()
                self._heal([fault for fault, until in active.items() if until <= now], active)
                while waiting and waiting[0].at <= now:
                    step = waiting.pop(0)
                    fault = step.fault(self.environment, submitter, random.Random(step.seed))
                    active[fault] = step.until
                    fault.begin()
                for fault in active:
                    fault.go_on()
                if not any(fault.subject == "master" for fault in active):
                    self._bring_back()
                time.sleep(TICK)
        finally:
            self._heal(list(active), active)

    def _heal(self, faults: Sequence[TrialFault], active: dict[TrialFault, float]) -> None:
        for fault in faults:
            del active[fault]
            fault.heal()
            self.declared.append(fault.declare(boottime()))

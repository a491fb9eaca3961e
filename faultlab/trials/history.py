"""The history of one trial: the records of handlers, submitters and operators, and the declared faults.

All times are boottime seconds, because no fault changes this clock. Only occurrences and `run_at` are unix seconds.
Used in the test process; the records are written by `handlers` (children), `submitter` and `schedule_operator`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from faultlab.trials.optioned_schedules import Changed, Optioned, Settled
from tests.daemon.harness import read_lines

SETTLED = frozenset({"finished", "IdempotentAlreadyFinishedError"})
"""Outcomes of a run that has itself finished its occurrence."""
EXITED = "exited"
BY_ITSELF = frozenset({"raised", EXITED})
"""Outcomes of a handler that has failed on its own, as its data says. Such a run is repeated without any fault."""
PAUSE = "pause"
RESUME = "resume"
RUN_NOW = "run-now"
MODIFY = "modify"
_SLACK = 1.0
"""Seconds by which an action may seem to take effect before it was tried, or after it was done. Clocks are rounded."""
ONLY = "only-"
"""The beginning of keys and types that only one node routes. The name of the node follows."""


REFILLED = "refilled"
"""The key of the schedule that has a backfill."""
_LANES = f"backfill:{REFILLED}:"
"""The beginning of the keys of the backfill's rows."""


def is_lane(key: str) -> bool:
    """Return whether this is the key of a row of the backfill, which runs one occurrence after another."""
    return key.startswith(_LANES)


def only_node(key: str) -> str | None:
    """Return the name of the only node that may run this key; None if all nodes may."""
    return key.removeprefix(ONLY).split("-")[0] if key.startswith(ONLY) else None


@dataclass(frozen=True)
class RecordedRun:
    """One run, as its handler recorded it.

    `seen`: the last sign of life. `end`: when the work was done, before the run was settled; None if the run was cut
    off. `outcome`: the recorded outcome, "finished" or the name of an exception; None if none was recorded.
    """

    key: str
    occurrence: int
    pid: int
    begin: float
    seen: float
    end: float | None = None
    outcome: str | None = None
    node: str = ""
    fence: int | None = None

    @property
    def finished(self) -> bool:
        """Whether this run has finished its occurrence."""
        return self.outcome in SETTLED


@dataclass(frozen=True)
class RecordedSubmission:
    """One key that a submitter tried to submit.

    `acknowledged`: when the submitter was told that the task is committed; None if never.
    """

    run_at: float
    acknowledged: float | None = None


@dataclass(frozen=True)
class Declared:
    """A fault that happened from `begin` to `until` to all processes of `nodes`, and to the processes `pids`.

    `excuses`: whether the fault may cut off runs that it touches, or let them lose their lease, so that they run again.
    `froze`: whether the processes were frozen, and so could not know what happened in this time.
    """

    kind: str
    begin: float
    until: float
    nodes: Collection[str] = ()
    pids: Collection[int] = ()
    excuses: bool = True
    froze: bool = False

    def touches(self, run: RecordedRun) -> bool:
        """Return whether the fault touches the process of this run."""
        return run.node in self.nodes or run.pid in self.pids


@dataclass(frozen=True)
class Every:
    """A schedule with an occurrence every `seconds`, from `first` (unix seconds) on.

    `work`: seconds that a run takes.
    """

    first: int
    seconds: int
    work: float = 0.0

    def has(self, occurrence: int) -> bool:
        """Return whether the schedule has this occurrence."""
        return occurrence >= self.first and (occurrence - self.first) % self.seconds == 0


@dataclass(frozen=True)
class Action:
    """An operator's action on a schedule, from its first try until its end.

    `done`: whether psched confirmed the action. Otherwise it may or may not have been done.
    """

    key: str
    verb: str
    tried: float
    ended: float
    done: bool


@dataclass(frozen=True)
class Actions:
    """The actions of operators on one schedule, in order. `boot`: the true unix time at boottime 0."""

    actions: Sequence[Action]
    boot: float

    @cached_property
    def _pauses(self) -> list[tuple[Action, Action | None]]:
        """Each pause, with the `resume` that ended it; None if the pause has not ended."""
        pauses: list[tuple[Action, Action | None]] = []
        begun: Action | None = None
        for action in self.actions:
            if action.verb == PAUSE and begun is None:
                begun = action
            elif action.verb == RESUME and begun is not None:
                pauses.append((begun, action))
                begun = None
        return pauses if begun is None else [*pauses, (begun, None)]

    def maybe_paused(self, occurrence: int) -> bool:
        """Return whether the schedule may have been paused at the time of this occurrence."""
        moment = occurrence - self.boot
        return any(
            begun.tried - _SLACK <= moment and (ended is None or moment <= ended.ended + _SLACK)
            for begun, ended in self._pauses
        )

    def surely_paused(self, occurrence: int) -> bool:
        """Return whether the schedule was certainly paused at the time of this occurrence."""
        moment = occurrence - self.boot
        return any(
            begun.done and begun.ended + _SLACK < moment and (ended is None or moment < ended.tried - _SLACK)
            for begun, ended in self._pauses
        )

    def maybe_asked(self, run: RecordedRun) -> bool:
        """Return whether `run-now` may have caused this run: as an extra run, or for an occurrence from a pause."""
        moment = run.occurrence - self.boot
        return any(
            action.tried <= run.begin
            and moment <= action.ended + _SLACK
            and (action.tried - _SLACK <= moment or self.maybe_paused(run.occurrence))
            for action in self._extras
        )

    def unanswered(self, runs: Sequence[RecordedRun]) -> Iterator[Action]:
        """Yield each `run-now` that was done, but caused no run that came to its end."""
        for action in self._extras:
            if action.done and not any(
                run.end is not None
                and run.begin >= action.tried
                and run.occurrence - self.boot <= action.ended + _SLACK
                for run in runs
            ):
                yield action

    @cached_property
    def _extras(self) -> list[Action]:
        return [action for action in self.actions if action.verb == RUN_NOW]


@dataclass(frozen=True)
class Recorded:
    """One entry of the ledger: a finished occurrence. `fence`: None if the store has no fences."""

    key: str
    occurrence: int
    fence: int | None


@dataclass(frozen=True)
class RecordsOfPsched:
    """What psched has recorded at the end of the trial.

    `complaints`: pairs of a key and a violation that the audit found.
    """

    entries: Sequence[Recorded]
    complaints: Sequence[tuple[str, str]] = ()
    settled: Sequence[Settled] = ()
    changes: Sequence[Changed] = ()


@dataclass(frozen=True)
class History:
    """Everything that is known about one trial.

    `boot`: the true unix time at boottime 0. `idle`: when the last fault was healed. `over`: when the masters were told
    to stop, because all runs due at `idle` had ended, or after the maximum wait. `fences`: the stored fence of each
    finished task, if the store has fences. `proof`: None if the store keeps no ledger. `optioned`: the schedules with
    drawn options, which are not in `schedules`.
    """

    runs: Sequence[RecordedRun]
    schedules: Mapping[str, Every]
    submissions: Mapping[str, RecordedSubmission]
    faults: Sequence[Declared]
    boot: float
    idle: float
    over: float
    fences: Mapping[str, int] = field(default_factory=dict)
    proof: RecordsOfPsched | None = None
    actions: Sequence[Action] = ()
    optioned: Mapping[str, Optioned] = field(default_factory=dict)

    def by_key(self) -> dict[str, list[RecordedRun]]:
        """Return the runs of each key, in the order in which they began."""
        found: dict[str, list[RecordedRun]] = defaultdict(list)
        for run in sorted(self.runs, key=lambda run: run.begin):
            found[run.key].append(run)
        return found

    def actions_on(self, key: str) -> Actions:
        """Return the actions of operators on a schedule."""
        return self._actions.get(key) or Actions((), self.boot)

    @cached_property
    def _actions(self) -> dict[str, Actions]:
        found: dict[str, list[Action]] = defaultdict(list)
        for action in self.actions:
            found[action.key].append(action)
        return {key: Actions(actions, self.boot) for key, actions in found.items()}

    def late(self, run: RecordedRun) -> float:
        """Return how many seconds after its occurrence the run began; negative if it began early."""
        return self.boot + run.begin - run.occurrence


def read_runs(path: Path) -> list[RecordedRun]:
    """Return the recorded runs, in the order in which they began."""
    runs: dict[str, dict[str, Any]] = {}
    for line in read_lines(path):
        run = runs.setdefault(line["run"], {})
        if line["event"] == "begin":
            run |= {name: line[name] for name in ("key", "occurrence", "pid", "node", "fence")}
            run |= {"begin": line["at"], "seen": line["at"]}
        elif line["event"] in {"sign", "end"}:
            run["seen"] = line["at"]
        if line["event"] == "end":
            run["end"] = line["at"]
        elif line["event"] == "settled":
            run["outcome"] = line["outcome"]
    return sorted((RecordedRun(**run) for run in runs.values()), key=lambda run: run.begin)


def read_submissions(paths: Iterable[Path]) -> dict[str, RecordedSubmission]:
    """Return, by key, the submissions that submitters recorded."""
    found: dict[str, RecordedSubmission] = {}
    for path in paths:
        for line in read_lines(path):
            before = found.get(line["key"], RecordedSubmission(line["run_at"]))
            acknowledged = line["at"] if line["event"] == "acknowledged" else before.acknowledged
            found[line["key"]] = RecordedSubmission(line["run_at"], acknowledged)
    return found


def read_actions(path: Path) -> list[Action]:
    """Return the actions that operators recorded."""
    return [Action(**line) for line in read_lines(path)]


def write_faults(path: Path, faults: Iterable[Declared]) -> None:
    """Write the declared faults to a file, a line for each, for the analysis of trials that are kept."""
    lines = [{**asdict(fault), "nodes": sorted(fault.nodes), "pids": sorted(fault.pids)} for fault in faults]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def read_faults(path: Path) -> list[Declared]:
    """Return the faults in a file that `write_faults` wrote."""
    return [Declared(**line) for line in read_lines(path)]

"""The history of one trial: what handlers and submitters recorded, and which faults were declared.

All times are boottime seconds, which nothing in a trial shifts; only occurrences and `run_at` are unix seconds. In the
test process; the writers are `handlers` (children) and `submitter`.
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
"""Outcomes that say that this very run has finished its occurrence."""
EXITED = "exited"
BY_ITSELF = frozenset({"raised", EXITED})
"""Outcomes that say that the handler failed of its own will: it runs again without anybody's fault."""
PAUSE = "pause"
RESUME = "resume"
RUN_NOW = "run-now"
MODIFY = "modify"
_SLACK = 1.0
"""Seconds by which an action may have taken effect before it was tried, or after it was done: clocks are rounded."""
ONLY = "only-"
"""Keys and types that begin so are one node's, whose name follows."""


REFILLED = "refilled"
"""The schedule of which a backfill runs the past."""
_LANES = f"backfill:{REFILLED}:"
"""The keys of the rows of that backfill begin so."""


def is_lane(key: str) -> bool:
    """Return whether this is a row of the backfill, which runs one occurrence after another."""
    return key.startswith(_LANES)


def only_node(key: str) -> str | None:
    """Return which node alone may run this key; None: any."""
    return key.removeprefix(ONLY).split("-")[0] if key.startswith(ONLY) else None


@dataclass(frozen=True)
class RecordedRun:
    """One run, as its handler recorded it.

    `seen` is its last sign of life at work, `end` when its work was done and it was about to settle (None: cut off).
    `outcome`: what settling came to, "finished" or the name of an exception; None when nothing was recorded of it.
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
        """Whether it has settled its occurrence for good."""
        return self.outcome in SETTLED


@dataclass(frozen=True)
class RecordedSubmission:
    """One key that a submitter tried: when it was to run, and whether it was told that this is committed."""

    run_at: float
    acknowledged: float | None = None


@dataclass(frozen=True)
class Declared:
    """A fault as it was done, from `begin` until it was healed, to all processes of `nodes` and to these `pids`.

    `excuses` says whether a run that it touches may be cut off or lose its lease, and so be run again; `froze` whether
    the processes stood still, so that they cannot have known what happened meanwhile.
    """

    kind: str
    begin: float
    until: float
    nodes: Collection[str] = ()
    pids: Collection[int] = ()
    excuses: bool = True
    froze: bool = False

    def touches(self, run: RecordedRun) -> bool:
        """Tell whether the run was in one of the processes concerned."""
        return run.node in self.nodes or run.pid in self.pids


@dataclass(frozen=True)
class Every:
    """A schedule that was added: an occurrence each `seconds`, the first at `first` (unix seconds); `work` s each."""

    first: int
    seconds: int
    work: float = 0.0

    def has(self, occurrence: int) -> bool:
        """Tell whether the rule of the schedule has this occurrence."""
        return occurrence >= self.first and (occurrence - self.first) % self.seconds == 0


@dataclass(frozen=True)
class Action:
    """What an operator did to a schedule: one of the verbs, from when it was first tried until its end.

    `done`: whether psched said so. Otherwise it may have been done, or not.
    """

    key: str
    verb: str
    tried: float
    ended: float
    done: bool


@dataclass(frozen=True)
class Actions:
    """What operators did to one schedule, in their order. `boot`: the true unix time at boottime 0."""

    actions: Sequence[Action]
    boot: float

    @cached_property
    def _pauses(self) -> list[tuple[Action, Action | None]]:
        """Each pause with the `resume` that ended it."""
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
        """Tell whether the schedule may have been paused when this occurrence came."""
        moment = occurrence - self.boot
        return any(
            begun.tried - _SLACK <= moment and (ended is None or moment <= ended.ended + _SLACK)
            for begun, ended in self._pauses
        )

    def surely_paused(self, occurrence: int) -> bool:
        """Tell whether the schedule was paused when this occurrence came."""
        moment = occurrence - self.boot
        return any(
            begun.done and begun.ended + _SLACK < moment and (ended is None or moment < ended.tried - _SLACK)
            for begun, ended in self._pauses
        )

    def maybe_asked(self, run: RecordedRun) -> bool:
        """Tell whether a run may have been asked for by `run-now`, as an extra one or for what had come in a pause."""
        moment = run.occurrence - self.boot
        return any(
            action.tried <= run.begin
            and moment <= action.ended + _SLACK
            and (action.tried - _SLACK <= moment or self.maybe_paused(run.occurrence))
            for action in self._extras
        )

    def unanswered(self, runs: Sequence[RecordedRun]) -> Iterator[Action]:
        """Yield each `run-now` that was done, and of which no run came to its end."""
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
    """One entry of the ledger: the occurrence that is settled, and under which fence, where stores have one."""

    key: str
    occurrence: int
    fence: int | None


@dataclass(frozen=True)
class RecordsOfPsched:
    """What psched has on record at the end, and by schedule what its audit has to complain of."""

    entries: Sequence[Recorded]
    complaints: Sequence[tuple[str, str]] = ()
    settled: Sequence[Settled] = ()
    changes: Sequence[Changed] = ()


@dataclass(frozen=True)
class History:
    """All of one trial.

    `boot`: the true unix time at boottime 0; `calm`: when the last fault was healed; `over`: when the masters were told
    to stop, all that was due when it was calm being done, or patience at its end.
    `fences`: for each finished task the fence that is stored with it, where a store has one. `proof`: None where no
    ledger is kept. `optioned`: the schedules with drawn options, besides `schedules`.
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
        """Return the runs of each key in the order in which they began."""
        found: dict[str, list[RecordedRun]] = defaultdict(list)
        for run in sorted(self.runs, key=lambda run: run.begin):
            found[run.key].append(run)
        return found

    def actions_on(self, key: str) -> Actions:
        """Return what operators did to a schedule."""
        return self._actions.get(key) or Actions((), self.boot)

    @cached_property
    def _actions(self) -> dict[str, Actions]:
        found: dict[str, list[Action]] = defaultdict(list)
        for action in self.actions:
            found[action.key].append(action)
        return {key: Actions(actions, self.boot) for key, actions in found.items()}

    def late(self, run: RecordedRun) -> float:
        """Return how many seconds after its time a run began; negative: it was early."""
        return self.boot + run.begin - run.occurrence


def read_runs(path: Path) -> list[RecordedRun]:
    """Return the runs of the handlers' records, in the order in which they began."""
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
    """Return what submitters tried, by key, from their records."""
    found: dict[str, RecordedSubmission] = {}
    for path in paths:
        for line in read_lines(path):
            before = found.get(line["key"], RecordedSubmission(line["run_at"]))
            acknowledged = line["at"] if line["event"] == "acknowledged" else before.acknowledged
            found[line["key"]] = RecordedSubmission(line["run_at"], acknowledged)
    return found


def read_actions(path: Path) -> list[Action]:
    """Return what operators did, from their records."""
    return [Action(**line) for line in read_lines(path)]


def write_faults(path: Path, faults: Iterable[Declared]) -> None:
    """Write what was declared beside the records, a line for each fault, so that a kept trial can be looked into."""
    lines = [{**asdict(fault), "nodes": sorted(fault.nodes), "pids": sorted(fault.pids)} for fault in faults]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def read_faults(path: Path) -> list[Declared]:
    """Return what `write_faults` wrote."""
    return [Declared(**line) for line in read_lines(path)]

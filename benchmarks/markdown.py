"""Formats results as Markdown tables, for the terminal and for docs/benchmarks.md. Runs in the measuring process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from benchmarks.databases import BEHIND, STORES
from benchmarks.goals import GOALS, Goal, GoalVerdict, Rounds
from benchmarks.report import BenchmarkRecord, Series
from benchmarks.workload import Workload

_TITLES = {
    "postgresql": "PostgreSQL",
    "pgbouncer": "PostgreSQL behind PgBouncer",
    "mariadb": "MariaDB",
    "sqlite": "SQLite",
    "redis": "Redis",
}


def tables(record: BenchmarkRecord, workloads: Iterable[Workload]) -> Iterator[str]:
    """Yield the lines of the report: the machine, a table for each workload, the goals, and the failures."""
    yield from _where(record)
    for workload in workloads:
        yield from _table(workload, [each for each in record.series() if each.workload == workload.name])
    yield from _goals(record.rounds())
    yield from (f"FAILED {failure}" for failure in record.failures)


def _where(record: BenchmarkRecord) -> Iterator[str]:
    machine = record.about()["machine"]
    many = sorted({len(each.values) for each in record.series()})
    loads = [load for each in record.series() for load in each.loads]
    yield f"{record.about()['date']}, {machine['cpus']} processors ({machine['processor']}), {machine['system']},"
    yield f"Python {machine['python']}, {', '.join(machine['servers'])},"
    yield f"{', '.join(f'{name} {version}' for name, version in machine['drivers'].items())}."
    if loads:
        yield f"Rounds: {' or '.join(map(str, many))}; medians, in brackets the lowest and the highest."
        yield f"Load of the machine {_range(loads)}; {sum(record.seconds().values()) / 60:.0f} minutes in all."


def _table(workload: Workload, measured: Sequence[Series]) -> Iterator[str]:
    if not measured:
        return
    stores = [store for store in (*STORES, *BEHIND) if any(each.store == store for each in measured)]
    rows: dict[tuple[str, str], dict[str, Series]] = {}
    for each in measured:
        rows.setdefault((each.contender, each.metric), {})[each.store] = each
    yield ""
    yield f"| {workload.name}: {workload.what} | {' | '.join(_TITLES[store] for store in stores)} |"
    yield "|---" * (len(stores) + 1) + "|"
    for (contender, metric), cells in rows.items():
        yield f"| {contender}, {metric} | {' | '.join(_cell(cells.get(store)) for store in stores)} |"
    yield f"| load | {' | '.join(_loads(measured, store) for store in stores)} |"


def _cell(series: Series | None) -> str:
    if series is None:
        return ""
    return shown(series.median) + (f" ({_range(series.values)})" if len(series.values) > 1 else "")


def _loads(measured: Sequence[Series], store: str) -> str:
    return _range([load for each in measured if each.store == store for load in each.loads])


def _range(values: Sequence[float]) -> str:
    return f"{shown(min(values))} – {shown(max(values))}"


def _goals(rounds: Rounds) -> Iterator[str]:
    """Yield the table of the goals. An absolute bound also has its ratios; see `Goal.meant`."""
    lines = [_goal(goal, found, rounds) for goal in GOALS if (found := goal.reached(rounds))]
    if lines:
        yield ""
        yield "| goal | store | wanted | found | reached | as a ratio | found | reached |"
        yield "|---" * 8 + "|"
        yield from lines


def _goal(goal: Goal, verdict: GoalVerdict, rounds: Rounds) -> str:
    ratios = [(each.words, found) for each in goal.ratios() if (found := each.reached(rounds))]
    cells = (
        f"{goal.workload}, {goal.metric}",
        _TITLES[goal.store],
        *_judged(goal.words, verdict),
        *("; ".join(cells) for cells in zip(*(_judged(*each) for each in ratios), strict=True)),
        *([] if ratios else ["", "", ""]),
    )
    return f"| {' | '.join(cells)} |"


def _judged(words: str, verdict: GoalVerdict) -> tuple[str, str, str]:
    return words, shown(verdict.found), "yes" if verdict.reached else "**no**"


def shown(value: float) -> str:
    """Return a value as text: with three digits, or from 100 on as a whole number."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def times(seconds: Mapping[str, float]) -> Iterator[str]:
    """Yield a line with the seconds of each workload, and a line with their sum."""
    for workload, taken in seconds.items():
        yield f"{workload:14} {taken:6.0f} s"
    yield f"{'together':14} {sum(seconds.values()):6.0f} s"

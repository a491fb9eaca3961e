"""psched migrate: copies schedules and waiting tasks from PerfectSched's and PerfectQueue's tables to psched's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from typing import Any, TypeVar

import click

from psched.cli.formatting import json_lines, printable, write
from psched.cli.opened_sections import opened_as
from psched.cli.option_types import exactly
from psched.cli.options import Chosen, common_options
from psched.cli.progress_bar import with_progress
from psched.config import Section, SectionName, default_table
from psched.cron import CronDialect
from psched.errors import ConfigError
from psched.keys import check_key
from psched.model import NewTask, Rule, ScheduleRow, TaskRow
from psched.queue.queue import Queue, storable_task
from psched.schedules import rule_occurrences
from psched.schedules.collection import ScheduleCollection
from psched.schedules.validation import checked_rule, warn_of_step
from psched.time_text import local_time

R = TypeVar("R", ScheduleRow, TaskRow)
N = TypeVar("N", ScheduleRow, NewTask)

_BATCH = 100
"""The maximum number of rows that one transaction reads and writes."""
_OTHER_SIDE = "whose type is not the configured `type:`."
_OLDEST_DUE = 1_300_000_000
"""Unix seconds in March 2011. PerfectQueue only runs tasks whose due time is later."""
_WINDOW, _WINDOWS = 28 * 86400, 14
"""Length in seconds and number of the windows in which the occurrences of two cron dialects are compared. Together the
windows are more than a year.
"""


class _NotCopiedError(Exception):
    """A row is not copied. The message says why."""


@dataclass
class SectionCopy:
    """The result of copying one section.

    `left`: the key of each row that was not copied, and the reason. `notes`: keys of rows, each with a remark.
    """

    section: SectionName
    source: str
    target: str
    copied: int = 0
    present: int = 0
    ended: int = 0
    left: list[tuple[str, str]] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)

    def copy(
        self, rows: Iterable[R], convert: Callable[[R], N | None], add: Callable[[Sequence[N]], list[str]]
    ) -> None:
        """Copy rows to the target.

        `convert`: returns the new row, or None for a task that has ended; may raise _NotCopiedError. `add`: writes new
        rows to the target, and returns the keys that existed there already.
        """
        rest = with_progress(rows, f"rows of {self.source} copied")
        while batch := list(islice(rest, _BATCH)):
            new = []
            for row in batch:
                try:
                    converted = convert(row)
                except (_NotCopiedError, ConfigError, ValueError) as error:
                    self.left.append((row.key, str(error)))
                    continue
                if converted is None:
                    self.ended += 1
                else:
                    new.append(converted)
            present = add(new) if new else []
            self.present += len(present)
            self.copied += len(new) - len(present)

    def lines(self) -> Iterator[str]:
        for what, found in (("not copied", self.left), ("note", self.notes)):
            yield from (f"{self.section}: {printable(key)}: {what}: {printable(why)}" for key, why in found)
        counts = [f"{self.copied} copied from {self.source} to {self.target}", f"{self.present} existed already"]
        counts += [f"{self.ended} had ended (finished or cancelled)"] if self.section == "queue" else []
        yield f"{self.section}: {', '.join(counts)}, {len(self.left)} not copied"

    def fields(self) -> dict[str, Any]:
        counts = {name: getattr(self, name) for name in ("section", "source", "target", "copied", "present", "ended")}
        left = [{"key": key, "problem": why} for key, why in self.left]
        return {**counts, "left": left, "notes": [{"key": key, "note": why} for key, why in self.notes]}


def migrate_command(reader: SectionName) -> click.Command:
    """Return the command `migrate` for a group of commands.

    `reader`: the section that a configuration without sections describes.
    """

    @click.command()
    @click.option(
        "--from",
        "source",
        type=exactly("rdb_compat"),
        metavar="rdb_compat",
        required=True,
        help="Type of the old tables.",
    )
    @click.option("--to", "target", type=exactly("rdb"), metavar="rdb", required=True, help="Type of the new tables.")
    @click.option(
        "--workers-stopped",
        is_flag=True,
        help="Confirm that all workers of these tables have stopped, Ruby's and psched's.",
    )
    @click.option("--include-delayed", is_flag=True, help="Also copy rows that may be leased, and keep their times.")
    @click.option(
        "--schedules-table",
        metavar="NAME",
        help=f"Name of the old or new table of schedules: the table {_OTHER_SIDE}",
    )
    @click.option(
        "--queue-table",
        metavar="NAME",
        help=f"Name of the old or new queue table: the table {_OTHER_SIDE}",
    )
    @common_options()
    def migrate(
        chosen: Chosen,
        source: str,
        target: str,
        workers_stopped: bool,
        include_delayed: bool,
        schedules_table: str | None,
        queue_table: str | None,
    ) -> int:
        """Copy rows of Ruby's tables to psched's own.

        Copies the schedules of PerfectSched and the waiting tasks of PerfectQueue. The old tables are not changed. The
        new tables are created in the same database. The configuration may have either type, rdb_compat or rdb. The
        options below name the tables of the other type.

        The old tables do not distinguish a delayed row from a row that is leased or waits for a retry. Such rows are
        listed, and copied only with --include-delayed. Cancelled and finished tasks are not copied.

        Keys that exist in the new tables are skipped, so the command may be repeated until the new workers start. The
        exit code is 1 if a row was not copied. --json prints one array with an object for each section: section,
        source, target, copied, present, ended, left (key, problem) and notes (key, note).
        """
        if not workers_stopped:
            raise click.UsageError(
                "a run in progress would run again; stop all workers of the old tables, Ruby's and "
                "psched's, then add --workers-stopped"
            )
        tables: dict[SectionName, str | None] = {"schedules": schedules_table, "queue": queue_table}
        done = []
        settings = chosen.settings(reader)
        for name, section in settings.named_sections:
            if section.type not in (source, target):
                raise ConfigError(
                    f"{settings.path}:{settings.environment}: {name} has `type: {section.type}`; set "
                    f"`type: {target}` (or `{source}`), and `url:` to the database that has the old tables"
                )
            old, new = (_as_type(section, name, type_, tables[name]) for type_ in (source, target))
            with opened_as(old, name) as whole, opened_as(new, name, check=False) as copy:
                copy.store.create_tables()
                _check_no_worker(copy)
                migration = SectionCopy(name, old.table, new.table)
                _copy_all(migration, whole, copy, (old, new), include_delayed)
            done.append(migration)
            if not chosen.json:
                write(migration.lines())
        if chosen.json:
            write(json_lines(migration.fields() for migration in done))
        return 1 if any(migration.left for migration in done) else 0

    return migrate


migrate_schedules = migrate_command("schedules")


def _as_type(section: Section, name: SectionName, type_: str, table: str | None) -> Section:
    """Return `section` if it has the type `type_`, else a copy of it with the type `type_` and the table `table`."""
    if section.type == type_:
        return section
    return Section(
        type=type_,
        url=section.url,
        table=default_table(name, type_) if table is None else table,
        tls=section.tls,
        pooler=section.pooler,
        timezone=section.timezone,
        max_data_size=section.max_data_size,
    )


def _check_no_worker(collection: ScheduleCollection | Queue) -> None:
    alive = [] if collection.store.nodes is None else collection.store.nodes.alive()
    if alive:
        names = ", ".join(node.name for node in alive)
        raise ConfigError(
            f"nodes of the new tables are running: {names}; stop them until everything is copied, because tasks that "
            "they finish would be copied again (a killed node counts as running for a minute)"
        )


def _copy_all(
    migration: SectionCopy,
    source: ScheduleCollection | Queue,
    target: ScheduleCollection | Queue,
    sections: tuple[Section, Section],
    include_delayed: bool,
) -> None:
    now = source.store.now()

    def check_lease(due: float) -> None:
        if due > now and not include_delayed:
            raise _NotCopiedError(
                f"it may be leased until {local_time(due)}, or it is delayed (copy it with --include-delayed)"
            )

    def schedule(row: ScheduleRow) -> ScheduleRow:
        if row.problem is not None:
            raise _NotCopiedError(row.problem)
        if row.status == "leased":
            check_lease(row.next_run_time)
        dialects = sections[0].cron_dialect, sections[1].cron_dialect
        check_key(row.key)
        check_key(row.type, "type")
        checked_rule(row.rule, dialects[1])
        warn_of_step(row.rule.cron, dialects[1])
        if not _same_times(row.rule, int(now), *dialects):
            note = f"runs at other times with cron_dialect: {dialects[1]}; to keep its times, configure {dialects[0]}"
            migration.notes.append((row.key, note))
        return replace(row, status="waiting", settled=True)

    def task(row: TaskRow) -> NewTask | None:
        if row.due is None or row.cancel_requested:
            return None
        if row.problem is not None:
            raise _NotCopiedError(row.problem)
        if row.due <= _OLDEST_DUE:
            raise _NotCopiedError(
                f"PerfectQueue never runs it, because its time is {local_time(row.due)}, before March 2011"
            )
        check_lease(row.due)
        user = row.user or None
        limit = None if user is None else row.max_running
        new = NewTask(row.key, row.type, row.data, row.due, user, limit, compression=row.compression)
        return storable_task(new)

    if isinstance(source, ScheduleCollection) and isinstance(target, ScheduleCollection):
        migration.copy(source.list(), schedule, target.store.add_many)
    elif isinstance(source, Queue) and isinstance(target, Queue):
        migration.copy(source.list(), task, target.store.submit)


@lru_cache(4096)
def _same_times(rule: Rule, start: int, first: CronDialect, second: CronDialect) -> bool:
    """Return whether a rule has equally many occurrences in both dialects, in each of `_WINDOWS` time ranges."""
    if first == second:
        return True
    begins = range(start, start + _WINDOW * _WINDOWS, _WINDOW)
    one, other = (
        [rule_occurrences.count(rule, begin, begin + _WINDOW, each) for begin in begins] for each in (first, second)
    )
    return one == other

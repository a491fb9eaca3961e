"""psched queue: the commands on the tasks of the queue."""

from __future__ import annotations

from functools import partial
from typing import Any

import click
from attrs import evolve

from psched.cli.command_by_key import command_by_key
from psched.cli.completion import completed_keys, completed_types
from psched.cli.formatting import (
    KEPT,
    Fields,
    ListColumns,
    fields_of,
    json_line,
    number,
    write,
    write_fields,
    write_object,
    write_rows,
)
from psched.cli.import_from_json import import_tasks
from psched.cli.init_tables import CHECK, init_tables
from psched.cli.json_input import read_data
from psched.cli.migrate_from_ruby import migrate_command
from psched.cli.opened_sections import listed_tasks, opened_queue, opened_section, required_section
from psched.cli.option_types import UNIX_TIME, count, seconds
from psched.cli.options import LIMIT, PREFIX, WIDE, Chosen, LimitedRows, common_options
from psched.cli.options_before_command import CommandGroup
from psched.cli.routing_warnings import warn_unless_routed
from psched.cli.rows_left_to_ruby import LeftToRuby
from psched.cli.stats import LAST, report_fields, report_of, write_report
from psched.config import Settings
from psched.insight import TaskInsight
from psched.model import TASK_STATUSES, Progress, TaskRow
from psched.queue.queue import PRIORITIES, QueuedTask
from psched.stored_error_summary import error_summary
from psched.supervisor.run_master import run_master
from psched.time_text import span

_COLUMNS = {"key": 30, "type": 15, "user": 18, "status": 18, "created_at": 28, "timeout": 28, "data": 0}
_TABLE = ListColumns(
    brief={"key": 3, "type": 1, "user": 1, "status": 2, "time": 2, "last_error": 0},
    own_time="time",
    wide=(*(name for name in _COLUMNS if name != "data"), "finished_at", "attempts", "last_error", "data"),
    original=_COLUMNS,
)
_TIMES = ("created_at", "run_at", "timeout", "finished_at")
_COUNTED = ("waiting", "due", "running")
_STATS = ListColumns(
    brief={"type": 0, **dict.fromkeys((*_COUNTED, "oldest", "nodes"), KEPT)},
    wide=("type", *_COUNTED, "oldest", "nodes"),
)


@click.group(cls=CommandGroup)
@common_options(loading=True)
def queue(chosen: Chosen) -> None:
    """Commands on the queue: tasks that run once.

    A configuration without sections is read as the section `queue`. Command names may have `_` instead of `-`.
    """


@queue.command()
@CHECK
@common_options()
def init(chosen: Chosen, check: bool) -> int:
    """Create the queue's tables, or upgrade tables of an earlier version while workers go on.

    Does for the queue alone what `psched init` does; see `psched init --help`. Only these two commands create an SQLite
    file.
    """
    return init_tables(chosen, ["queue"], check)


@queue.command("list")
@click.option("--status", "--state", type=click.Choice(TASK_STATUSES), help="Only tasks with this status.")
@click.option("--type", metavar="TYPE", shell_complete=completed_types("queue"), help="Only tasks of this type.")
@click.option("-u", "--user", metavar="USER", help="Only tasks of this user.")
@click.option(
    "--late",
    type=seconds(),
    is_flag=False,
    flag_value="1m",
    help="Only waiting tasks that have been due for SEC seconds (or 90s, 5m, 2h). Without SEC: 1m.",
)
@PREFIX
@LIMIT
@click.option("--after", metavar="KEY", help="Continue after KEY, which the previous page (with --limit) printed.")
@WIDE
@click.option(
    "--format", "layout", type=click.Choice(["perfectqueue"]), help="Print the columns of the program perfectqueue."
)
@common_options()
def list_(chosen: Chosen, /, limit: int | None, wide: bool, layout: str | None, **wanted: Any) -> None:
    """List the tasks by key. Finished tasks are listed until their `retention_time` is over.

    On a terminal the columns are key, type, user, status, time and last error; --wide shows all. The column time shows
    when a waiting task is due, when an ended task ended, or `now` for a running task. Into a pipe or file, all columns
    are written as tab-separated text.

    Times are in this host's time zone. `timeout` is when a task is due or when its lease ends. --json prints one array
    of objects with key, type, user, status (waiting, running, finished, failed or cancelled), cancel_requested,
    created_at, run_at, timeout and finished_at (unix seconds or null, all again as *_local in ISO 8601), data, headers,
    max_running, priority, attempts, max_attempts, compression, last_error, node, progress (null, or done, total,
    message and attempt), result, has_result and problem (why the row cannot be run).
    """
    with listed_tasks(chosen) as insight:
        left = LeftToRuby(chosen, "queue")
        page = LimitedRows(insight.rows(**wanted), limit, lambda row: row.key)
        write_rows(
            (_fields(left.seen(row)) for row in page),
            _TIMES,
            _TABLE,
            listed=_listed,
            as_json=chosen.json,
            wide=wide,
            original=layout is not None,
        )
        page.note()
        left.note(insight)


def _fields(row: TaskRow) -> Fields:
    """Return the fields of `--json`. Later versions must keep the names and meanings of the fields."""
    fields = row._asdict()
    fields["timeout"] = fields.pop("due")
    fields["progress"] = None if row.progress is None else row.progress._asdict()
    return fields


def _listed(row: Fields) -> Fields:
    time = row["timeout"] if row["finished_at"] is None else row["finished_at"]
    return row | {
        "status": "cancel_requested" if row["cancel_requested"] and row["timeout"] is not None else row["status"],
        "time": "now" if row["status"] == "running" else time,
        "last_error": None if row["last_error"] is None else error_summary(row["last_error"]),
    }


@queue.command()
@click.argument("key")
@click.argument("type", shell_complete=completed_types("queue"))
@click.argument("data")
@click.option("-u", "--user", metavar="USER", help="User of the task; workers serve all users in turn.")
@click.option("-t", "--time", "run_at", type=UNIX_TIME, help="When to run the task (default: now).")
@click.option("--max-running", type=count(), help="Run at most N tasks of this user at a time.")
@click.option(
    "--priority",
    type=count(PRIORITIES[0], PRIORITIES[-1]),
    default=0,
    help="Priority from -100 to 100; the highest runs first (default: 0).",
)
@click.option(
    "--max-attempts",
    type=count(),
    help="Give up after N failed attempts (default: the limit of the type or of the configuration).",
)
@click.option("--compression", type=click.Choice(["gzip"]), help="Store the data compressed.")
@click.option(
    "--headers", metavar="JSON", help="A JSON object about the task (or @FILE); handlers read it as task.headers."
)
@common_options()
def submit(chosen: Chosen, /, key: str, type: str, data: str, headers: str | None, **options: Any) -> None:
    """Submit a task.

    KEY names the task, and TYPE the function or handler that runs it. For example:

    psched queue submit receipt-5 shop.send_receipt '{"order": 5}'

    DATA is a JSON object, @FILE to read it from a file, or - for standard input. TIME is unix seconds, or a date with a
    time zone such as 2026-12-01T08:00+01:00. --json prints the task as `list` does.

    The key of a finished task can be used again after its `retention_time`.
    """
    content = read_data(data)
    try:
        about = None if headers is None else read_data(headers)
    except ValueError as error:
        raise ValueError(f"--headers: {error}") from error
    with opened_queue(chosen) as tasks:
        task = tasks.submit(key, type, content, headers=about, **options)
        warn_unless_routed(chosen, "queue", tasks.store, type)
        if chosen.json:
            write_object(_fields(task.metadata()), _TIMES)


@queue.command()
@LAST
@common_options()
def stats(chosen: Chosen, last: float) -> None:
    """Count the tasks by status and type, and the runs of the last hour by type.

    Prints the number of tasks in each status. Then, for each type: waiting tasks, due tasks, running tasks, for how
    long the first task has been due, and the number of live nodes that route the type (`nodes`). At most 10,000 tasks
    of a status and 1,000 of a type (`1,000+`) are counted. At most 100 types are shown, the longest due first. Then the
    command prints the runs that ended, as `psched stats` does. A wait is the time from a task's due time to the start
    of its first attempt. With `type: rdb_compat`, only the statuses are counted, because it keeps types inside the data
    and stores no statistics.

    --json prints one object with statuses (for each status an object with count, and with more: true if there may be
    more tasks than count), types: an array of objects with type, waiting, due, running (as above), oldest (seconds, or
    null) and nodes (null if nodes are not recorded), and runs, as in `psched stats`.
    """
    with opened_section(chosen, "queue", read_only=True) as tasks:
        insight = TaskInsight(tasks)
        counts = insight.counts()
        types = insight.types() if tasks.store.keeps_types else []
        nodes = insight.nodes()
        report = report_of(insight, tasks.store.stats is not None, last)
    rows = [
        fields_of(each) | {"nodes": None if nodes is None else sum(node.types.accepts(each.type) for node in nodes)}
        for each in types
    ]
    if chosen.json:
        statuses = {name: fields_of(number) for name, number in counts.items()}
        objects = [row | {name: fields_of(row[name]) for name in _COUNTED} for row in rows]
        write([json_line({"statuses": statuses, "types": objects, "runs": report_fields(report)})])
        return
    write_fields({name: str(number) for name, number in counts.items()}, ())
    if rows:
        write_rows(rows, (), _STATS, listed=_counted, as_json=False)
    write_report(report)


def _counted(row: Fields) -> Fields:
    oldest = None if row["oldest"] is None else span(row["oldest"])
    return row | {name: str(row[name]) for name in _COUNTED} | {"oldest": oldest}


@queue.command()
@click.argument("key", shell_complete=completed_keys("queue"))
@common_options()
def show(chosen: Chosen, key: str) -> None:
    """Show one task.

    --json prints one object as in `list`.
    """
    with opened_queue(chosen) as tasks:
        row = tasks[key].metadata()
    if chosen.json:
        write_object(_fields(row), _TIMES)
    else:
        limit = "" if row.max_attempts is None else f" of {row.max_attempts}"
        shown = {"attempts": f"{row.attempts}{limit}", "headers": row.headers or None, "has_result": None}
        shown |= {"progress": _progress(row.progress), "result": json_line(row.result) if row.has_result else None}
        write_fields(_fields(row) | shown, _TIMES)


def _progress(progress: Progress | None) -> str | None:
    """Return a line such as `5 of 10: resizing (attempt 1)`."""
    if progress is None:
        return None
    of = "" if progress.total is None else f" of {number(progress.total)}"
    said = "" if progress.message is None else f": {progress.message}"
    return f"{number(progress.done)}{of}{said} (attempt {progress.attempt})"


@command_by_key("queue")
def cancel_request(task: QueuedTask) -> None:
    """Request that a task be cancelled.

    A waiting task is cancelled immediately. A running task is cancelled by its handler, which may also finish it.
    """
    task.cancel_request()


@command_by_key("queue")
def force_finish(task: QueuedTask) -> None:
    """Mark a task as finished. A run in progress loses its lease and is asked to stop."""
    task.force_finish()


@command_by_key("queue")
def retry(task: QueuedTask) -> None:
    """Make a failed or cancelled task due now, and reset its number of attempts."""
    task.retry()


@command_by_key("queue")
def delete(task: QueuedTask) -> None:
    """Delete a task, finished or not. A run in progress loses its lease and is asked to stop."""
    task.delete()


for command in (import_tasks, cancel_request, force_finish, retry, delete, migrate_command("queue")):
    queue.add_command(command)


@queue.command()
@click.argument("app", nargs=-1)
@common_options(loading=True)
def run(chosen: Chosen, app: tuple[str, ...]) -> int:
    """Run the tasks of the queue, but no schedules, in the foreground until a signal.

    APP: see `psched run`.
    """
    return run_master(None, partial(_only_queue, chosen.absolute(), app))


def _only_queue(chosen: Chosen, app: tuple[str, ...]) -> Settings:
    settings = chosen.settings("queue", app)
    required_section(settings, "queue")
    return evolve(settings, schedules=None)

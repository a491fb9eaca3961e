"""psched queue: the commands on queue tasks."""

from __future__ import annotations

from functools import partial
from typing import Any

import click
from attrs import evolve

from psched.cli.formatting import (
    json_line,
    json_lines,
    with_local_times,
    write,
    write_fields,
    write_table,
)
from psched.cli.options import Chosen, Count, UnixTime, common_options
from psched.cli.session import opened_queue, parse_data, required_section
from psched.cli.unrunnable_rows import left_to_ruby, note_unrunnable_rows, warn_unless_routed
from psched.config import Settings
from psched.model import TaskRow
from psched.queue.queue import PRIORITIES, STATUSES
from psched.supervisor.run import run_master

_COLUMNS = {"key": 30, "type": 15, "user": 18, "status": 18, "created_at": 28, "timeout": 28, "data": 0}
_TIMES = ("created_at", "run_at", "timeout", "finished_at")


@click.group()
@common_options(loading=True)
def queue(chosen: Chosen) -> None:
    """Commands on the queue: tasks that run once.

    A configuration without sections is the queue's. Command names may have `_` instead of `-`.
    """


@queue.command()
@common_options()
def init(chosen: Chosen) -> None:
    """Create the queue's tables.

    Does nothing if they exist. Only this command and `psched init` create a SQLite file.
    """
    with opened_queue(chosen, check=False) as tasks:
        tasks.store.create_tables()


@queue.command("list")
@click.option("--status", type=click.Choice(STATUSES), help="Only tasks with this status.")
@click.option("--type", metavar="TYPE", help="Only tasks of this type.")
@click.option("-u", "--user", metavar="USER", help="Only tasks of this user.")
@common_options()
def list_(chosen: Chosen, status: str | None, type: str | None, user: str | None) -> None:
    """List the tasks by key, finished ones too for `retention_time`.

    Times are in this host's time zone. `timeout` is when a task is due or its lease ends.
    --json prints one array of objects with key, type, user, status (waiting, running, finished, failed or cancelled),
    cancel_requested, created_at, run_at, timeout and finished_at (unix seconds or null, all again as *_local in
    ISO 8601), data, max_running, priority, attempts, max_attempts, compression, last_error, node and problem (why
    such a row cannot be run).
    """
    with opened_queue(chosen) as tasks:
        left = left_to_ruby(chosen, "queue")
        found = tasks.list(status, type, user)
        rows = found if left is None else left.counted(found)
        if chosen.json:
            write(json_lines(map(_object, rows)))
        else:
            write_table(_COLUMNS, map(_listed, rows), _TIMES)
        note_unrunnable_rows(tasks.store, left)


def _fields(row: TaskRow) -> dict[str, Any]:
    """Return the fields of `--json`. Later versions keep their names and meanings."""
    fields = row._asdict()
    fields["timeout"] = fields.pop("due")
    return fields


def _object(row: TaskRow) -> dict[str, Any]:
    return with_local_times(_fields(row), _TIMES)


def _listed(row: TaskRow) -> dict[str, Any]:
    is_pending = row.cancel_requested and row.due is not None
    return _fields(row) | {"status": "cancel_requested" if is_pending else row.status}


@queue.command()
@click.argument("key")
@click.argument("type")
@click.argument("data")
@click.option("-u", "--user", metavar="USER", help="Owner of the task; users take turns.")
@click.option("-t", "--time", "run_at", type=UnixTime(), metavar="TIME", help="When to run it (default: now).")
@click.option("--max-running", type=Count(), metavar="N", help="Run at most N tasks of this user at a time.")
@click.option(
    "--priority",
    type=Count(PRIORITIES[0], PRIORITIES[-1]),
    default=0,
    metavar="N",
    help="From -100 to 100; highest first (default: 0).",
)
@click.option(
    "--max-attempts",
    type=Count(),
    metavar="N",
    help="Give up after N attempts (default: that of the type, or the config).",
)
@click.option("--compression", type=click.Choice(["gzip"]), help="Store the data compressed.")
@common_options()
def submit(chosen: Chosen, /, key: str, type: str, data: str, **options: Any) -> None:
    """Submit a task.

    DATA is a JSON object. TIME is unix seconds, or a date with a time zone such as 2026-12-01T08:00+01:00. --json
    prints the task as `list` does.

    The key of a finished task can be used again after `retention_time`.
    """
    content = parse_data(data)
    with opened_queue(chosen) as tasks:
        task = tasks.submit(key, type, content, **options)
        warn_unless_routed(chosen, "queue", tasks.store, type)
        if chosen.json:
            write([json_line(_object(task.metadata()))])


@queue.command()
@click.argument("key")
@common_options()
def show(chosen: Chosen, key: str) -> None:
    """Show one task.

    --json prints one object as in `list`.
    """
    with opened_queue(chosen) as tasks:
        row = tasks[key].metadata()
    if chosen.json:
        write([json_line(_object(row))])
    else:
        limit = "" if row.max_attempts is None else f" of {row.max_attempts}"
        write_fields(_fields(row) | {"attempts": f"{row.attempts}{limit}"}, _TIMES)


@queue.command()
@click.argument("key")
@common_options()
def cancel_request(chosen: Chosen, key: str) -> None:
    """Request that a task is cancelled.

    A waiting task is cancelled at once. A running task is cancelled by its handler, which may finish it instead.
    """
    with opened_queue(chosen) as tasks:
        tasks[key].cancel_request()


@queue.command()
@click.argument("key")
@common_options()
def force_finish(chosen: Chosen, key: str) -> None:
    """Retire a task as finished. A run in progress is preempted."""
    with opened_queue(chosen) as tasks:
        tasks[key].force_finish()


@queue.command()
@click.argument("key")
@common_options()
def retry(chosen: Chosen, key: str) -> None:
    """Make a failed or cancelled task due now, and count its attempts from 0."""
    with opened_queue(chosen) as tasks:
        tasks[key].retry()


@queue.command()
@click.argument("key")
@common_options()
def delete(chosen: Chosen, key: str) -> None:
    """Delete a task, finished or not. A run in progress is preempted."""
    with opened_queue(chosen) as tasks:
        tasks[key].delete()


@queue.command()
@click.argument("app", nargs=-1)
@common_options(loading=True)
def run(chosen: Chosen, app: tuple[str, ...]) -> int:
    """Run the queue's tasks, but no schedules, in the foreground until a signal.

    APP is as for `psched run`.
    """
    return run_master(None, partial(_only_queue, chosen.absolute(), app))


def _only_queue(chosen: Chosen, app: tuple[str, ...]) -> Settings:
    settings = chosen.settings("queue", app)
    required_section(settings, "queue")
    return evolve(settings, schedules=None)

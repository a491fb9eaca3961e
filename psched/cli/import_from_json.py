"""psched import json and psched queue import: add the schedules or tasks in a JSON file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import click

from psched.cli.formatting import printable, write, write_object
from psched.cli.json_input import parse_data, parse_json, read_source
from psched.cli.opened_sections import opened, opened_queue
from psched.cli.options import Chosen, common_options
from psched.cli.progress_bar import with_progress
from psched.error_messages import did_you_mean, shown
from psched.errors import ConfigError, NotSupportedError
from psched.model import NewSchedule, NewTask
from psched.queue.queue import checked_task
from psched.schedules.validation import check_distinct

N = TypeVar("N", NewSchedule, NewTask)

_BATCH = 500
"""The maximum number of rows that one transaction writes."""
_SHOWN = 5
"""The maximum number of keys in one message."""
_STATE = frozenset(
    (
        *("status", "state", "lateness", "overdue", "attempts", "last_error", "node", "problem", "paused"),
        *("regular_time", "next_run_time", "runs", "failures", "cancel_requested", "created_at"),
        *("finished_at", "progress", "result", "has_result"),
    )
)
"""Fields of `list --json` that are not part of a definition."""
_DUE = "timeout"
"""The name of a task's due time in `queue list --json`. It is not part of the task's definition."""


@click.command("json")
@click.argument("file")
@common_options()
def import_json(chosen: Chosen, file: str) -> None:
    """Add the schedules in a JSON file to the database.

    FILE (- for standard input) is a JSON array in the format of `list --json`, or has one JSON object per line. Each
    object needs key, type and cron. It may have data, timezone, delay, next_time and the options of a schedule, named
    as in `list --json`. The other fields that `list` prints are ignored, but a paused schedule is refused.

    All schedules are checked before the first is added. Keys that exist are skipped, so the command may be repeated.
    --json prints an object with added (a number) and present (the keys that exist).
    """
    with opened(chosen) as schedules:
        rows = list(_checked(file, "schedule", _new_schedule, schedules.check))
        _add(rows, schedules.add_many, "schedules", chosen.json)


@click.command("import")
@click.argument("file")
@common_options()
def import_tasks(chosen: Chosen, file: str) -> None:
    """Submit the tasks in a JSON file.

    FILE (- for standard input) is a JSON array in the format of `queue list --status waiting --json`, or has one JSON
    object per line. Each object needs key and type. It may have data, headers, run_at, user, max_running, priority,
    max_attempts and compression. The other fields that `queue list` prints are ignored, but a task that is not waiting
    is refused.

    All tasks are checked before the first is submitted. Keys that exist are skipped, so the command may be repeated.
    --json prints an object with added (a number) and present (the keys that exist).
    """
    with opened_queue(chosen) as tasks:
        rows = list(_checked(file, "task", _new_task, checked_task))
        _add(rows, tasks.submit_many, "tasks", chosen.json)


def _checked(file: str, what: str, convert: Callable[[dict[str, Any]], N], check: Callable[[N], object]) -> Iterator[N]:
    """Convert and check each object in a file, and yield the new rows.

    Raises ValueError that names the file, the row and the mistake.
    """
    name, text = read_source(file)
    keys = []
    for number, found in enumerate(_objects(name, text), 1):
        key = found.get("key")
        try:
            row = convert(found)
            check(row)
        except (ConfigError, NotSupportedError, ValueError) as error:
            raise ValueError(f"{name}: {what} {number} ({shown(key)}): {error}") from error
        keys.append(row.key)
        yield row
    if not keys:
        raise ValueError(f"{name}: no {what} in this file; expected a JSON array, or one JSON object per line")
    check_distinct(keys, what)


def _objects(name: str, text: str) -> Iterator[dict[str, Any]]:
    if not text.lstrip().startswith("["):
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                try:
                    yield parse_data(line)
                except ValueError as error:
                    raise ValueError(f"{name}: line {number}: {error}") from None
        return
    try:
        objects = parse_json(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    for number, found in enumerate(objects, 1):
        if not isinstance(found, dict):
            raise ValueError(f"{name}: element {number} must be a JSON object, got {shown(found)}")
        yield found


def _new_schedule(found: dict[str, Any]) -> NewSchedule:
    if found.get("paused"):
        raise ValueError(
            "the schedule is paused, but would run after the import; resume it before the export, or remove `paused`"
        )
    fields = _definition(found, NewSchedule._fields, ("key", "type", "cron"))
    if found.get("regular_time") is not None:  # the extra run precedes the regular occurrence
        fields["next_time"] = found["regular_time"]
    return NewSchedule(**fields)


def _new_task(found: dict[str, Any]) -> NewTask:
    if found.get("status", "waiting") != "waiting":
        raise ValueError(
            f"the task is {found['status']}; export waiting tasks only: psched queue list --status waiting --json"
        )
    own = {name: value for name, value in found.items() if name != _DUE}
    return NewTask(**_definition(own, NewTask._fields, ("key", "type")))


def _definition(found: dict[str, Any], names: Sequence[str], required: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a definition. Raises ValueError if a field is missing or unknown."""
    for name in required:
        if name not in found:
            raise ValueError(f"{name} is missing; give key, type{' and cron' if 'cron' in required else ''}")
    fields = {name: value for name, value in found.items() if name not in _STATE and not name.endswith("_local")}
    for name in fields:
        if name not in names:
            raise ValueError(f"unknown field {name!r}{did_you_mean(name, names)}")
    return fields


def _add(rows: Sequence[N], add: Callable[[Sequence[N]], list[str]], what: str, as_json: bool) -> None:
    present: list[str] = []
    for count, _ in enumerate(with_progress(rows, f"{what} imported", len(rows))):
        if count % _BATCH == 0:
            present += add(rows[count : count + _BATCH])
    if as_json:
        write_object({"added": len(rows) - len(present), "present": present}, ())
        return
    more = ", …" if len(present) > _SHOWN else ""
    left = f"; {len(present)} exist already: {', '.join(map(printable, present[:_SHOWN]))}{more}" if present else ""
    write([f"{len(rows) - len(present)} {what} added{left}"])

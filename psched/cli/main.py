"""The command `psched`. Add new commands to the table in this module."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from copy import copy
from functools import partial
from pkgutil import resolve_name
from typing import Any

import click

from psched.cli.errors import run_command
from psched.cli.options import Chosen, common_options
from psched.cli.options_before_command import CommandGroup

_COMMANDS = {
    "init": "init_tables:init",
    "list": "schedules:list_",
    "add": "schedules:add",
    "import": "import_schedules:import_",
    "modify": "schedules:modify",
    "show": "schedules:show",
    "delete": "schedules:delete",
    "pause": "schedules:pause",
    "resume": "schedules:resume",
    "run-now": "schedules:run_now",
    "backfill": "backfill:backfill",
    "next": "next:next_",
    "stats": "stats:stats",
    "top": "top:top",
    "explain": "explain:explain",
    "forecast": "forecast:forecast",
    "simulate": "simulate:simulate",
    "plan": "schedules_as_code:plan_",
    "apply": "schedules_as_code:apply_",
    "diff": "schedules_as_code:diff",
    "export": "schedules_as_code:export",
    "rollback": "schedules_as_code:rollback",
    "calendar": "calendars:calendar",
    "history": "history:history",
    "nodes": "nodes:nodes",
    "audit": "audit:audit",
    "doctor": "doctor:doctor",
    "exporter": "exporter:exporter",
    "web": "web:web",
    "migrate": "migrate_from_ruby:migrate_schedules",
    "run": "run_in_foreground:run",
    "queue": "queue:queue",
}
"""The commands by their names. A value names the module in `psched.cli` and the function in this module."""


class LazyCommands(UserDict[str, Any]):
    """The commands of a group by their names. A value `module:name` is imported when it is first read.

    Importing the modules of all commands takes twice as long as importing only the modules of one command.
    """

    def __getitem__(self, name: str) -> click.Command:
        found = super().__getitem__(name)
        if isinstance(found, str):
            found = self[name] = resolve_name(found)
        assert isinstance(found, click.Command)
        return found


@click.group(
    cls=CommandGroup,
    commands=LazyCommands({name: f"psched.cli.{place}" for name, place in _COMMANDS.items()}),
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda token: token.replace("_", "-"),  # perfectqueue writes cancel_request
    },
)
@click.version_option(package_name="psched", prog_name="psched")
@common_options(loading=True)
def psched(chosen: Chosen) -> None:
    """Cron and background tasks for several machines, in the database that you already have.

    A first schedule needs `psched init`, `psched add` and `psched run`. Tasks that run once have their own commands:
    `psched queue`. The daemon in the background is `pschedd`.

    Options may be given before or after the command. The exit code is 1 for an error, which is printed in one line, and
    2 for wrong usage.
    """


main = partial(run_command, psched)


def commands_with(run: Callable[[], int]) -> click.Group:
    """Return psched's commands. `run` and `queue run` only parse their options, and then call the argument `run`."""

    def replaced(group: click.Group) -> click.Group:
        commands: Any = group.commands
        group, command = copy(group), copy(commands["run"])
        command.callback = lambda **_: run()
        group.commands = commands | {"run": command}
        return group

    found = replaced(psched)
    queue = found.commands["queue"]
    assert isinstance(queue, click.Group)
    found.commands["queue"] = replaced(queue)
    return found

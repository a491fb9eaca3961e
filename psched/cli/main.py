"""The command `psched`. Add new commands to the list in this module."""

from __future__ import annotations

from functools import partial

import click

from psched.cli import (
    audit,
    backfill,
    calendars,
    doctor,
    explain,
    exporter,
    forecast,
    history,
    nodes,
    queue,
    schedules,
    schedules_as_code,
    simulate,
    stats,
    top,
    web,
)
from psched.cli import next as upcoming
from psched.cli.errors import run_command
from psched.cli.import_schedules import import_
from psched.cli.migrate_from_ruby import migrate_command
from psched.cli.options import Chosen, common_options
from psched.cli.options_before_command import CommandGroup
from psched.cli.run_worker import run


@click.group(
    cls=CommandGroup,
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


for command in (
    schedules.init,
    schedules.list_,
    schedules.add,
    import_,
    schedules.modify,
    schedules.show,
    schedules.delete,
    schedules.pause,
    schedules.resume,
    schedules.run_now,
    backfill.backfill,
    upcoming.next_,
    stats.stats,
    top.top,
    explain.explain,
    forecast.forecast,
    simulate.simulate,
    schedules_as_code.plan_,
    schedules_as_code.apply_,
    schedules_as_code.diff,
    schedules_as_code.export,
    schedules_as_code.rollback,
    calendars.calendar,
    history.history,
    nodes.nodes,
    audit.audit,
    doctor.doctor,
    exporter.exporter,
    web.web,
    migrate_command("schedules"),
    run,
    queue.queue,
):
    psched.add_command(command)


main = partial(run_command, psched)

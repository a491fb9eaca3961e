"""psched: the command line. One file per group of commands; errors are one line, see `faults`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from psched.cli import audit, doctor, history, queue, run, schedules
from psched.cli import next as upcoming
from psched.cli.errors import guarded
from psched.cli.options import Chosen, common_options


@click.group(
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda token: token.replace("_", "-"),  # the originals say cancel_request
    }
)
@click.version_option(package_name="psched", prog_name="psched")
@common_options(loading=True)
def psched(chosen: Chosen) -> None:
    """Distributed cron on the database you already have.

    The options may stand before or after the command. Times are unix seconds.
    Exit codes: 1 for an error, told in one line, 2 for wrong usage.
    """


for command in (
    schedules.init,
    schedules.list_,
    schedules.add,
    schedules.modify,
    schedules.show,
    schedules.delete,
    schedules.pause,
    schedules.resume,
    schedules.run_now,
    upcoming.next_,
    history.history,
    audit.audit,
    doctor.doctor,
    run.run,
    queue.queue,
):
    psched.add_command(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. `arguments` default to the process's."""
    return guarded("psched", lambda: psched.main(arguments, "psched", standalone_mode=False) or 0)

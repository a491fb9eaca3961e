"""The command `psched`: a new command is added to the list here."""

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
        "token_normalize_func": lambda token: token.replace("_", "-"),  # perfectqueue has cancel_request
    }
)
@click.version_option(package_name="psched", prog_name="psched")
@common_options(loading=True)
def psched(chosen: Chosen) -> None:
    """Distributed cron on the database you already have.

    Options may stand before or after the command. Exit codes: 1 for an error, printed in one line; 2 for wrong usage.
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
    """Run the command line and return its exit code. `arguments`: by default those of the process."""
    return guarded("psched", lambda: psched.main(arguments, "psched", standalone_mode=False) or 0)

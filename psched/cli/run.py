"""psched run and psched queue run: a worker in the foreground; becomes the master."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import click

from psched.cli.options import DEFAULT_CONFIG, Chosen, common_options
from psched.config import Settings
from psched.supervisor.run import run_master


@click.command()
@click.argument("app", nargs=-1)
@common_options(loading=True)
def run(chosen: Chosen, app: tuple[str, ...]) -> int:
    """Run tasks in the foreground until a signal ends it.

    APP is module:NAME of a Dispatch or an App, or a bare NAME in a module given by -r; several are tried in order.
    Without one the configuration's `app` runs. Folders and modules of the configuration are loaded too.
    """
    return serve(chosen, app, Chosen.settings)


def serve(chosen: Chosen, app: tuple[str, ...], read: Callable[[Chosen], Settings]) -> int:
    """Be the master for what `read` makes of the command line, now and at every restart; returns the exit code."""
    given = replace(chosen, config=(DEFAULT_CONFIG if chosen.config is None else chosen.config).absolute())

    def load() -> Settings:
        return read(given).with_application(app, given.include, given.require, given.types)

    return run_master(None, load)

"""psched run: the master in the foreground; `serve` does the same for `psched queue run`."""

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
    """Run tasks in the foreground until a signal.

    APP is module:NAME of a Dispatch or an App, or a bare NAME in a module given by -r. Several APPs are tried in order
    for each type of task. Without APP, the configuration's `app` runs. Folders and modules of the configuration are
    loaded too.
    """
    return serve(chosen, app, Chosen.settings)


def serve(chosen: Chosen, app: tuple[str, ...], read: Callable[[Chosen], Settings]) -> int:
    """Run the master and return its exit code. `read` loads the settings, now and again at every reload."""
    given = replace(chosen, config=(DEFAULT_CONFIG if chosen.config is None else chosen.config).absolute())

    def load() -> Settings:
        return read(given).with_application(app, given.include, given.require, given.types)

    return run_master(None, load)

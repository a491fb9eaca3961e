"""psched run: runs a daemon, that is a master with its children, in the foreground."""

from __future__ import annotations

from functools import partial

import click

from psched.cli.options import Chosen, common_options
from psched.supervisor.run_master import run_master


@click.command()
@click.argument("app", nargs=-1)
@common_options(loading=True)
def run(chosen: Chosen, app: tuple[str, ...]) -> int:
    """Run tasks in the foreground until a signal.

    APP is module:NAME of a Dispatch or an App, or a bare NAME in a module given by -r. If several APPs are given, they
    are tried in the given order for each type of task. Without APP, the configuration's `app` runs. Folders and modules
    of the configuration are also loaded.
    """
    return run_master(None, partial(chosen.absolute().settings, app=app))

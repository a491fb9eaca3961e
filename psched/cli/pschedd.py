"""pschedd: the daemon's commands. `start` and `run` become the master; all others talk to the one that runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from psched.cli.daemon_commands import (
    FAILED,
    NOT_CONFIGURED,
    NOT_PERMITTED,
    UNKNOWN,
    Invocation,
    reload,
    reopen_logs,
    restart,
    run,
    start,
    status,
    stop,
    upgrade,
)
from psched.cli.errors import run_command
from psched.cli.options import DEFAULT_CONFIG, TypeGlobs
from psched.errors import ConfigError
from psched.supervisor.pidfile import PidFileError

_ACTIONS: dict[str, Callable[[Invocation], int]] = {
    "start": start,
    "stop": stop,
    "restart": restart,
    "reload": reload,
    "reopen-logs": reopen_logs,
    "upgrade": upgrade,
    "status": status,
    "run": run,
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="psched", prog_name="pschedd")
@click.option(
    "-e", "--environment", metavar="ENV", help="Environment in the file (default: $PSCHED_ENV, or development)."
)
@click.option(
    "-c", "--config", type=click.Path(path_type=Path), default=DEFAULT_CONFIG, metavar="PATH", show_default=True
)
@click.option("-I", "--include", multiple=True, metavar="DIR", help="Folder for the import path; may be repeated.")
@click.option("-r", "--require", multiple=True, metavar="MODULE|FILE.py", help="Load this first; may be repeated.")
@click.option(
    "--types",
    type=TypeGlobs(),
    multiple=True,
    metavar="GLOB,…",
    help="Run only these types, of those the application routes; replaces `types:` of the configuration.",
)
@click.option("--pid-file", type=click.Path(path_type=Path), metavar="PATH", help="Instead of the configuration's.")
@click.option("--immediate", is_flag=True, help="Do not wait for running tasks: give them back.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="S",
    help="Wait at most S seconds for the outcome; exit 1 after that.",
)
@click.option("--background", is_flag=True, hidden=True)  # passed by a binary upgrade of a daemon that `start` began
@click.argument("action", type=click.Choice(list(_ACTIONS)), metavar="ACTION")
@click.argument("app", nargs=-1)
def pschedd(action: str, **options: Any) -> int:
    """Control the psched daemon, or run it in the foreground.

    \b
    start        go into the background; returns when the workers are up
    stop         stop when the running tasks are done (--immediate: now)
    restart      stop, then start
    reload       new configuration and code, each worker after its task; fails when they are refused
    upgrade      a new master with a new interpreter takes over
    reopen-logs  after logrotate has moved them
    status       what the workers do, and what troubles them; 0 it runs, 1 it died, 3 it does not run, 4 unknown
    run          stay in the foreground

    APP is what to run, module:NAME, instead of the configuration's app.
    """  # noqa: D301 – click's mark of a paragraph that is not to be wrapped
    return _exit_code(action, Invocation.resolved(**options))


main = partial(run_command, pschedd)


def _exit_code(action: str, invocation: Invocation) -> int:
    try:
        return _ACTIONS[action](invocation)
    except ConfigError as error:
        code, message = NOT_CONFIGURED, str(error) + _hint(action)
    except PermissionError as error:
        code, message = NOT_PERMITTED, f"{error.strerror}: the daemon belongs to another user; try as root"
    except PidFileError as error:
        code, message = NOT_PERMITTED if isinstance(error.__cause__, PermissionError) else FAILED, str(error)
    for line in message.splitlines():
        click.echo(f"pschedd: {line}", err=True)
    return UNKNOWN if action == "status" else code


def _hint(action: str) -> str:
    """Return a hint for the actions that need nothing of the configuration but the pid file."""
    helps = action in ("stop", "status", "reopen-logs")
    return f"\nuntil that is fixed: pschedd {action} --pid-file PATH" if helps else ""


if __name__ == "__main__":
    sys.exit(main())

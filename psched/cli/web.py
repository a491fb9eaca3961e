"""psched web: serves the web pages about schedules, tasks and nodes."""

from __future__ import annotations

import click

from psched.cli.errors import FAILED, print_error
from psched.cli.options import Chosen, common_options
from psched.config.web import address
from psched.errors import ConfigError

_NEEDED = ("starlette", "jinja2", "uvicorn", "anyio", "markupsafe")


def _address(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, int] | None:
    try:
        return None if value is None else address(value)
    except ValueError as error:
        raise click.BadParameter(str(error).removeprefix("listen: ")) from None


@click.command("web")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    callback=_address,
    help="Listen at this address (default: web.listen, or 127.0.0.1:9808).",
)
@common_options()
def web(chosen: Chosen, listen: tuple[str, int] | None) -> int:
    """Serve pages about schedules, tasks and nodes.

    Runs until TERM or INT. Without authentication, only visitors on this host are accepted, and an address that other
    hosts can reach is refused. Visitors cannot change anything unless `web: {actions: true}` is configured. See
    docs/web.md.
    """
    try:
        from psched.web.server import serve  # noqa: PLC0415 – the libraries are optional
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _NEEDED:
            raise
        raise ConfigError(f"psched web needs {error.name}, which is not installed: pip install 'psched[web]'") from None
    settings = chosen.settings()
    host, port = settings.web.listen if listen is None else listen
    try:
        serve(settings, (host, port), lambda url: click.echo(f"psched web: {url}"))
    except OSError as error:
        problem = str(error.strerror).partition(" (")[0]  # remove the address, which Python adds
        print_error("psched", f"cannot listen on {host}:{port}: {problem}")
        return FAILED
    return 0

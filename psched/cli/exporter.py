"""psched exporter: metrics for Prometheus."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import click

from psched.cli.errors import FAILED, print_error
from psched.cli.option_types import seconds
from psched.cli.options import Chosen, common_options
from psched.errors import ConfigError
from psched.insight import open_insight

_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]*)):(\d{1,5})")


def _address(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, int] | None:
    if value is None:
        return None
    found = _ADDRESS.fullmatch(value)
    if found is None or int(found[3]) > 65535:
        raise click.BadParameter(f"expected HOST:PORT such as 127.0.0.1:9807 or [::1]:9807, got {value!r}")
    return found[1] or found[2] or "0.0.0.0", int(found[3])  # noqa: S104 – `:9807` means every interface


@click.command("exporter")
@click.option(
    "--listen", metavar="HOST:PORT", callback=_address, help="Serve /metrics, /healthz and /readyz at this address."
)
@click.option(
    "--textfile",
    type=click.Path(path_type=Path),
    help="Write the metrics to this file for node_exporter's textfile collector, instead of serving them.",
)
@click.option(
    "--interval", type=seconds(1), default=15.0, show_default=True, help="Seconds between two writes of --textfile."
)
@click.option("--once", is_flag=True, help="Write the file of --textfile once, and exit.")
@click.option(
    "--metrics-file",
    type=click.Path(path_type=Path),
    help="File of the daemon's counters (default: metrics_file of the configuration, or beside its pid_file).",
)
@common_options()
def exporter(
    chosen: Chosen,
    listen: tuple[str, int] | None,
    textfile: Path | None,
    interval: float,
    once: bool,
    metrics_file: Path | None,
) -> int:
    """Export metrics for Prometheus about the daemon on this host and about its database.

    Runs until TERM or INT. Run it as the daemon's user, or as a member of its group. Give --listen or --textfile.
    docs/monitoring.md describes the metrics and the alerts.
    """
    if (listen is None) == (textfile is None):
        raise click.UsageError("give either --listen HOST:PORT or --textfile PATH")
    try:
        from psched.exporter.families import NodeCollector  # noqa: PLC0415 – the library is optional
        from psched.exporter.server import serve  # noqa: PLC0415
        from psched.exporter.text_file import write_text_file, write_text_files  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("prometheus_client"):
            raise
        message = "psched exporter needs prometheus_client, which is not installed: pip install 'psched[prometheus]'"
        raise ConfigError(message) from None
    from psched.exporter.database import section_readers  # noqa: PLC0415

    settings = chosen.settings()
    path = settings.metrics_path(settings.pid_file) if metrics_file is None else metrics_file
    with open_insight(settings) as insight:
        collector = NodeCollector(path, section_readers(insight))
        try:
            if textfile is not None and once:
                write_text_file(collector, textfile)
                return 0
            _end_on_signals()
            if textfile is not None:
                write_text_files(collector, textfile, interval)
            elif listen is not None:
                serve(collector, *listen, lambda url: click.echo(f"psched exporter: {url}"))
        except OSError as error:
            what = f"write {textfile}" if listen is None else f"listen on {listen[0]}:{listen[1]}"
            print_error("psched", f"cannot {what}: {error.strerror}")
            return FAILED
    return 0


def _end_on_signals() -> None:
    def end(number: int, frame: object) -> None:
        sys.exit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)

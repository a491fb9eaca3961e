"""psched init: creates, upgrades or checks the tables of every section. `psched queue init` uses this module, too."""

from __future__ import annotations

from collections.abc import Sequence

import click

from psched.cli.formatting import json_lines, write
from psched.cli.opened_sections import opened_section
from psched.cli.options import Chosen, common_options
from psched.config import SectionName

UPGRADE_NEEDED = 3

CHECK = click.option(
    "--check",
    is_flag=True,
    help="Change nothing. If an upgrade is needed, print its statements (on Redis: scripts), and exit with 3.",
)


@click.command()
@CHECK
@common_options()
def init(chosen: Chosen, check: bool) -> int:
    """Create the tables of every section, or upgrade tables of an earlier version while workers go on.

    Does nothing if the tables are up to date. You may interrupt the command at any time, and start it again. Only this
    command and `psched queue init` create an SQLite file.

    --check changes nothing. The exit code is 0 if the tables are up to date, 3 if they need an upgrade, and 1 if a
    table is missing or cannot be upgraded. The statements of an upgrade (on Redis its scripts) are printed.
    --json prints one array of objects with section and statement.
    """
    return init_tables(chosen, [name for name, _ in chosen.settings().named_sections], check)


def init_tables(chosen: Chosen, names: Sequence[SectionName], check: bool) -> int:
    """Create, upgrade or check the tables of sections. Returns the exit code. Raises the errors of `opened_section`."""
    if not check:
        for name in names:
            with opened_section(chosen, name, check=False) as collection:
                collection.store.create_tables()
        return 0
    pending: dict[SectionName, list[str]] = {}
    for name in names:
        with opened_section(chosen, name, check=False) as collection:
            pending[name] = collection.store.pending_statements()
    if chosen.json:
        rows = [{"section": name, "statement": each} for name, found in pending.items() for each in found]
        write(json_lines(rows))
    else:
        for name, found in pending.items():
            write([f"-- {name}", *(f"{statement};" for statement in found)] if found else [])
    return UPGRADE_NEEDED if any(pending.values()) else 0

"""Creates, upgrades or checks the tables of sections, for `psched init` and `psched queue init`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from psched.cli.formatting import json_lines, write
from psched.cli.opened_sections import opened_section
from psched.cli.options import Chosen
from psched.config import SectionName

UPGRADE_NEEDED = 3

CHECK = click.option("--check", is_flag=True, help="Change nothing. If an upgrade is needed, print it and exit with 3.")


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

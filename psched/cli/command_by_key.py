"""Commands whose argument is the key of a schedule or task."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from psched.cli.completion import completed_keys
from psched.cli.opened_sections import opened_section
from psched.cli.options import Chosen, common_options
from psched.config import SectionName


def command_by_key(name: SectionName) -> Callable[[Callable[[Any], None]], click.Command]:
    """Return a decorator that makes a click command with the argument KEY.

    The decorated function gets the Schedule or the QueuedTask with this key.
    """

    def decorate(function: Callable[[Any], None]) -> click.Command:
        @click.command()
        @click.argument("key", shell_complete=completed_keys(name))
        @common_options()
        @wraps(function)
        def command(chosen: Chosen, key: str) -> None:
            with opened_section(chosen, name) as collection:
                function(collection[key])

        return command

    return decorate

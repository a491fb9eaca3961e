"""Shell completion of keys and types in a section."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import click

from psched.cli.opened_sections import opened_section
from psched.cli.options import Chosen
from psched.config import SectionName

_MOST_COMPLETIONS = 1000


def completed_keys(name: SectionName) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    return partial(_completions, name, lambda row: row.key)


def completed_types(name: SectionName) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    return partial(_completions, name, lambda row: row.type)


def _completions(
    name: SectionName,
    word: Callable[[Any], str | None],
    context: click.Context,
    parameter: click.Parameter,
    incomplete: str,
) -> list[str]:
    """Return the words that begin with the typed text, from the first 1,000 rows.

    `word`: returns the key or the type of a row. If the section cannot be read, returns no words and prints no error,
    because the user is at a prompt.
    """
    prefix = incomplete if parameter.name == "key" and incomplete else None
    try:
        with opened_section(context.find_object(Chosen) or Chosen(), name, read_only=True) as collection:
            words = {word(row) for row in islice(collection.list(prefix=prefix), _MOST_COMPLETIONS)}
    except Exception:  # noqa: BLE001 – the command itself reports any problem
        return []
    return sorted(each for each in words if each is not None and each.startswith(incomplete))

"""Shows on a terminal how far a long command is."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

T = TypeVar("T")


def with_progress(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Yield the items. Meanwhile a terminal shows a bar, which disappears at the end.

    The bar is on standard output if that is a terminal, below what the command prints, else on standard error. `total`:
    the number of items, if it is known.
    """
    console = Console(stderr=not sys.stdout.isatty())
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield from progress.track(items, total, description=what)

"""Shows the progress of a long command on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def with_progress(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Yield the items. On a terminal, show a progress bar, which disappears at the end.

    The bar is on standard output, below the printed lines. If standard output is no terminal, the bar is on standard
    error. `total`: the number of items, if it is known.
    """
    if not sys.stdout.isatty() and not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console  # noqa: PLC0415 - 30 ms, a tenth of the time of a short command
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    console = Console(stderr=not sys.stdout.isatty())
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield from progress.track(items, total, description=what)

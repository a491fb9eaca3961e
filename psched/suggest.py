"""The "did you mean" of error messages. Used in every process."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the known word closest to `word` in any case, or nothing when none is close."""
    by_folded = {name.casefold(): name for name in known}
    close = get_close_matches(word.casefold()[:100], by_folded, n=1)
    return f"; did you mean {by_folded[close[0]]!r}?" if close else ""

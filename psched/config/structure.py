"""From mappings to `Section` and `Settings`, each value tested as its field's annotation says. Any process."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from cattrs import Converter

from psched.config.settings import Test


@lru_cache(maxsize=8)
def structuring(base: Path) -> Converter:
    """Return what makes objects of mappings, relative paths taken from the folder `base`.

    Its `structure` raises ClassValidationError with all faults: what a test raised, KeyError for what is missing.
    """
    converter = Converter(forbid_extra_keys=True)
    converter.register_structure_hook_factory(lambda kind: _test_of(kind) is not None, lambda kind: _hook(kind, base))
    return converter


def _test_of(kind: Any) -> Test | None:
    return next((each for each in getattr(kind, "__metadata__", ()) if isinstance(each, Test)), None)


def _hook(kind: Any, base: Path) -> Callable[[Any, Any], Any]:
    test = _test_of(kind)
    assert test is not None
    return (lambda value, _: test.check(value, base)) if test.located else (lambda value, _: test.check(value))

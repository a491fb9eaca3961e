"""A cache of the statements that SQLAlchemy has compiled, shared by all stores that the test process opens.

Each store has an engine of its own, which would compile each statement again. That would take about a fifth of a test's
own processor time.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.util import LRUCache

from psched.backends.sql import database

_CAPACITY = 3000
"""The maximum number of statements: enough for the tables of all pairs of store and database, and for some new tables.
"""


class CompiledCache(LRUCache[Any, Any]):
    """SQLAlchemy's `compiled_cache` for many engines. Dialects that compile in the same way share their statements."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(_of_any_engine(key), default)

    def __setitem__(self, key: Any, compiled: Any) -> None:
        super().__setitem__(_of_any_engine(key), compiled)


def _of_any_engine(key: Any) -> Any:
    """Return SQLAlchemy's key, with the dialect replaced by the properties that decide how it compiles."""
    dialect, *rest = key
    quote = dialect.identifier_preparer.initial_quote  # which a session of MySQL's chooses
    is_mariadb = getattr(dialect, "is_mariadb", False)
    kind = (dialect.name, dialect.driver, dialect.paramstyle, quote, is_mariadb, dialect.server_version_info)
    return (kind, *rest)


@pytest.fixture(scope="session", autouse=True)
def compiled_cache() -> Iterator[CompiledCache]:
    """Let the engines of all stores share compiled statements."""
    cache = CompiledCache(_CAPACITY)
    options = {"compiled_cache": cache}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "create_engine", partial(sa.create_engine, execution_options=options))
        yield cache

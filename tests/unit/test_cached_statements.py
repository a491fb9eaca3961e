"""SQL is built once in each process, and stores share no SQL that depends on one of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from psched.backends.rdb import open_stores
from psched.backends.sql.compiled_statements import CompiledText, cached_on_class
from psched.store import Stores, StoreSettings


class Named:
    """A class whose statements depend only on a name."""

    builds = 0

    def __init__(self, name: str, own: int) -> None:
        self.own = own
        self._write(name)

    @cached_on_class
    def _write(self, name: str) -> None:
        type(self).builds += 1
        self.text = [name]


class Careless:
    """A class whose statements wrongly depend on a value of the instance."""

    def __init__(self, own: int) -> None:
        self._own = own
        self._write()

    @cached_on_class
    def _write(self) -> None:
        self.text = str(self._own)


def test_what_is_made_of_the_same_arguments_is_made_once() -> None:
    first, second, other = Named("a", 1), Named("a", 2), Named("b", 3)
    assert first.text is second.text
    assert (first.own, second.own, other.text) == (1, 2, ["b"])
    assert Named.builds == 2


def test_what_would_depend_on_one_object_cannot_be_made() -> None:
    with pytest.raises(AttributeError, match="_own"):
        Careless(1)


def stores(path: Path, table: str) -> Stores:
    return open_stores(StoreSettings(f"sqlite:///{path}", "holder", schedules=table, queue=f"{table}_queue"))


def test_stores_on_tables_of_the_same_names_share_their_sql_and_nothing_else(tmp_path: Path) -> None:
    opened = [stores(tmp_path / "one.db", "a"), stores(tmp_path / "other.db", "a"), stores(tmp_path / "one.db", "b")]
    for kind in ("schedules", "queue"):
        first, second, other = (getattr(each, kind) for each in opened)
        assert first.lease_statements is second.lease_statements
        assert first.lease_statements is not other.lease_statements
        assert first._database is not second._database


def test_a_driver_gets_only_the_values_that_a_statement_uses() -> None:
    statement = CompiledText("SELECT %(key)s, %(limit)s", None, ("key", "limit"), {"limit": 5})
    assert statement.parameters({"key": "a", "type_0": "t"}) == {"key": "a", "limit": 5}

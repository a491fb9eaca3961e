"""The tables that a version can use. The tables of a layout do not change unnoticed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

import psched
from psched.backends import open_stores
from psched.backends.common import layout_version
from psched.backends.common.layout_version import RecordedLayout, Standing, standing
from psched.backends.redis import upgrades as redis_upgrades
from psched.backends.sql import listen_notify, upgrades
from psched.backends.sql.schema_setup import RecordedSchema, creation
from psched.store import StoreSettings
from tests.stores.layout_dumps import check_dump

URLS = {"sqlite": "sqlite://", "postgresql": "postgresql://h/d", "mariadb": "mysql://h/d", "mysql": "mysql://h/d"}


def dialect_of(database: str) -> sa.Dialect:
    made: Any = {"sqlite": sqlite, "postgresql": postgresql}.get(database, mysql)
    return made.dialect(is_mariadb=True) if database == "mariadb" else made.dialect()  # type: ignore[no-any-return]


def schemas(url: str) -> dict[str, RecordedSchema]:
    """Return the recorded schema for each kind of table."""
    settings = StoreSettings(url=url, holder="h", schedules="schedules", queue="queue", ledger="ledger")
    own, compat = open_stores("rdb", settings), open_stores("rdb_compat", settings)
    found: list[Any] = [own.schedules, own.queue, compat.schedules]
    return {"schedules": found[0]._layout, "queue": found[1]._layout, "ledger": found[2]._others}


@pytest.mark.parametrize("database", URLS)
def test_the_tables_of_a_layout_do_not_change_unnoticed(database: str) -> None:
    lines = []
    for kind, schema in schemas(URLS[database]).items():
        lines.append(f"-- {kind}, whose schema hash is {schema.hash};\n")
        lines += [f"{sql};\n" for sql in creation(schema.tables, dialect_of(database))]
    if database == "postgresql":
        lines += [f"-- of schedules and queue;\n{step};\n" for step in listen_notify._STEPS]
    check_dump(f"{database}.sql", "".join(lines))


def test_the_scripts_of_redis_know_the_same_layouts() -> None:
    script = Path(psched.__file__).parent / "backends" / "redis" / "scripts" / "common.lua"
    found = re.search(r"^local LAYOUTS = \{(.*?)\}", script.read_text(), re.MULTILINE)
    assert found is not None
    known = dict(re.findall(r"(\w+) = '([\d.]+)'", found[1]))
    assert known == {kind: redis_upgrades.layout_text(kind) for kind in ("schedules", "queue")}


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        (None, Standing.UNRELEASED),
        (RecordedLayout(4, "ours", 3), Standing.CURRENT),
        (RecordedLayout(4, "other", 3), Standing.UNRELEASED),
        (RecordedLayout(5, "next", 4), Standing.NEWER),
        (RecordedLayout(6, "after it", 4), Standing.NEWER),
        (RecordedLayout(6, "after it", 5), Standing.TOO_NEW),
        (RecordedLayout(3, "before", 2), Standing.OLDER),
        (RecordedLayout(3, "a state that was not released", 2), Standing.UNRELEASED),
        (RecordedLayout(1, "before", 1), Standing.UNRELEASED),
    ],
)
def test_what_a_version_does_with_tables(
    recorded: RecordedLayout | None, expected: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout_version, "LAYOUT", 4)
    released = {3: ["before"], 2: ["long before"]}
    assert standing(recorded, "ours", lambda layout: released.get(layout, ())) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [((b"2.1", b"1"), RecordedLayout(2, "1", 1)), ((b"7", b"1"), None), ((b"2.1", None), None), ((None, None), None)],
)
def test_what_redis_has_recorded(text: tuple[bytes | None, bytes | None], expected: RecordedLayout | None) -> None:
    assert redis_upgrades.read_recorded(*text) == expected


STATEMENTS = {
    "sqlite": ("ALTER TABLE t ADD COLUMN n BIGINT DEFAULT '0' NOT NULL", "CREATE INDEX t_n ON t (n)"),
    "postgresql": (
        "ALTER TABLE t ADD COLUMN IF NOT EXISTS n BIGINT DEFAULT '0' NOT NULL",
        "CREATE INDEX CONCURRENTLY t_n ON t (n)",
    ),
    "mariadb": (
        "ALTER TABLE t ADD COLUMN n BIGINT NOT NULL DEFAULT '0', ALGORITHM=INSTANT",
        "CREATE INDEX t_n ON t (n) ALGORITHM=INPLACE LOCK=NONE",
    ),
}


@pytest.mark.parametrize("database", STATEMENTS)
def test_tables_are_changed_while_workers_go_on(database: str) -> None:
    def column() -> sa.Column[int]:
        return sa.Column("n", sa.BigInteger, nullable=False, server_default="0")

    index = sa.Index("t_n", sa.Table("t", sa.MetaData(), column()).c.n)
    dialect = dialect_of(database)
    made = (upgrades.add_column("t", column(), dialect), upgrades.add_index(index, dialect))
    assert made == STATEMENTS[database]
    if database == "mariadb":
        assert upgrades.offline(made[0]) == "ALTER TABLE t ADD COLUMN n BIGINT NOT NULL DEFAULT '0'"
        assert upgrades.offline(made[1]) == "CREATE INDEX t_n ON t (n)"

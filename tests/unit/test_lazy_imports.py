"""`import psched` loads no database library; a store loads only the libraries of its own backend."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import psched

DATABASE_LIBRARIES = {"sqlalchemy", "redis", "psycopg", "pymysql", "MySQLdb"}


def libraries_loaded_by(code: str) -> set[str]:
    """Return the database libraries that a new interpreter has loaded after it has executed `code`."""
    report = "import json, sys; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{report}"], stdout=subprocess.PIPE, check=True)
    return {module.partition(".")[0] for module in json.loads(done.stdout)} & DATABASE_LIBRARIES


def test_import_psched_loads_no_database_library() -> None:
    assert libraries_loaded_by("import psched") == set()


def test_import_psched_loads_none_of_its_slow_modules() -> None:
    code = "import sys, psched; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    assert {"attrs", "cattrs", "yaml", "asyncio", "inspect", "psched.config"}.isdisjoint(loaded)


def test_public_names_load_no_database_library() -> None:
    assert libraries_loaded_by("from psched import *") == set()


def test_redis_stores_load_no_sqlalchemy() -> None:
    code = """
from psched.config import from_mapping
from psched.execution.opened_stores import open_sections

settings = from_mapping({"type": "redis", "url": "redis://127.0.0.1:1/0", "schedules": {}, "queue": {}})
assert len(list(open_sections(settings, "test"))) == 2
"""
    assert libraries_loaded_by(code) == {"redis"}


def test_sql_stores_load_no_redis() -> None:
    code = """
from psched.config import from_mapping
from psched.execution.opened_stores import open_sections

settings = from_mapping({"type": "rdb", "url": "sqlite:///:memory:", "schedules": {}, "queue": {}})
assert len(list(open_sections(settings, "test"))) == 2
"""
    assert libraries_loaded_by(code) == {"sqlalchemy"}


def test_every_public_name_is_defined_and_listed() -> None:
    assert set(psched.__all__) <= set(dir(psched))
    assert all(getattr(psched, name) is not None for name in psched.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'psched' has no attribute 'nothing'"):
        _ = psched.nothing  # type: ignore[attr-defined]

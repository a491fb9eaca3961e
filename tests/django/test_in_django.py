"""Django runs the tests of the sample project, and the tests of psched's promises in Django, on each database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from faultlab import prerequisites
from faultlab.laboratory import Lab
from faultlab.mariadb import MariaDB
from faultlab.postgresql import PostgreSQL
from tests.django.project import Project

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

_TABLES = """
from django.db import connection, transaction
from psched.contrib.django import clients

def make():
    for name in ("queue", "schedules"):
        clients.of(name).store.create_tables()

def pending():
    return [sql for name in ("queue", "schedules") for sql in clients.of(name).store.pending_statements()]

def problems():
    found = [finding for name in ("queue", "schedules") for finding in clients.of(name).store.diagnose()]
    return [finding.message for finding in found if not finding.ok]

def is_in_transaction():
    if connection.vendor == "postgresql":
        return connection.connection.info.transaction_status != 0
    if connection.vendor == "sqlite":
        return connection.connection.in_transaction
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@in_transaction")
        return bool(cursor.fetchone()[0])
"""


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def project(request: pytest.FixtureRequest, lab: Lab, tmp_path: Path) -> Iterator[Project]:
    if request.param == "sqlite":
        yield Project(tmp_path, None)
        return
    if request.param == "mariadb":
        prerequisites.require_mysqlclient()
    with lab.shared({"mariadb": MariaDB, "postgresql": PostgreSQL}[request.param]).database() as url:
        yield Project(tmp_path, url)


@pytest.mark.in_suite_on("postgresql")
def test_the_tests_of_the_sample_and_of_the_promises_pass(project: Project) -> None:
    printed = project.manage("test", "--keepdb", "--verbosity=2", "orders", "promises")
    assert "test_an_order_is_confirmed" in printed, printed
    assert "test_a_task_is_part_of_the_transaction" in printed, printed


@pytest.mark.in_suite_on("postgresql")
def test_the_migrations_are_complete(project: Project) -> None:
    project.manage("migrate", "--verbosity=0")
    assert "No changes detected" in project.manage("makemigrations", "--check", "--dry-run")
    assert "no issues" in project.manage("check", "--database", "default")
    assert "FAILED" not in project.manage("psched", "doctor")
    assert project.manage("dumpdata", "psched", "--all").strip() == "[]"


@pytest.mark.in_suite_on("postgresql")
def test_a_transaction_of_the_caller_can_look_for_the_tables_and_make_them(project: Project) -> None:
    """On PostgreSQL a failed statement would abort the transaction."""
    made = "with transaction.atomic():\n    found = problems()\n    make()\n"
    shown = "print(json.dumps([found, problems(), pending()]))"
    missing, problems, pending = project.python(f"{_TABLES}{made}{shown}")
    assert [message.partition(";")[0] for message in missing] == [
        "the table psched_queue does not exist",
        "the table psched_schedules does not exist",
    ]
    assert (problems, pending) == ([], [])
    assert project.python(f"{_TABLES}print(json.dumps(pending()))") == []


@pytest.mark.in_suite_on("postgresql")
def test_the_tables_can_be_changed_on_the_connection_of_django(project: Project) -> None:
    """`psched init` holds its lock in a separate session, so Django's connection begins no transaction."""
    is_mariadb = project.environ.get("DATABASE_URL", "").startswith("mysql")
    drop = f"DROP INDEX psched_actions_at{' ON psched_actions' if is_mariadb else ''}"
    project.manage("migrate", "--verbosity=0")
    dropped = f"{_TABLES}with connection.cursor() as cursor:\n    cursor.execute({drop!r})\n"
    [statement] = set(project.python(f"{dropped}print(json.dumps(pending()))"))
    assert "psched_actions_at" in statement
    project.manage("migrate", "psched", "zero", "--verbosity=0")
    project.manage("migrate", "--verbosity=0")
    assert project.python(f"{_TABLES}print(json.dumps(pending()))") == []
    made = project.python(f"{dropped}make()\nprint(json.dumps([pending(), is_in_transaction()]))")
    assert made == [[], False]

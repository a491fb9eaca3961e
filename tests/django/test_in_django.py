"""The tests of the sample project, and those of psched's promises in Django, run by Django on each database."""

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


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def project(request: pytest.FixtureRequest, lab: Lab, tmp_path: Path) -> Iterator[Project]:
    if request.param == "sqlite":
        yield Project(tmp_path, None)
        return
    if request.param == "mariadb":
        prerequisites.require_mysqlclient()
    with lab.shared({"mariadb": MariaDB, "postgresql": PostgreSQL}[request.param]).database() as url:
        yield Project(tmp_path, url)


def test_the_tests_of_the_sample_and_of_the_promises_pass(project: Project) -> None:
    printed = project.manage("test", "--keepdb", "--verbosity=2", "orders", "promises")
    assert "test_an_order_is_confirmed" in printed, printed
    assert "test_a_task_is_part_of_the_transaction" in printed, printed


def test_the_migrations_are_complete(project: Project) -> None:
    project.manage("migrate", "--verbosity=0")
    assert "No changes detected" in project.manage("makemigrations", "--check", "--dry-run")
    assert "no issues" in project.manage("check", "--database", "default")
    assert "FAILED" not in project.manage("psched", "doctor")
    assert project.manage("dumpdata", "psched", "--all").strip() == "[]"

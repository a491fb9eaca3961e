"""psched's workers run Django's tasks, with a real daemon, on SQLite and PostgreSQL."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from faultlab import prerequisites
from faultlab.laboratory import Lab
from faultlab.mariadb import MariaDB
from faultlab.postgresql import PostgreSQL
from faultlab.redis import Redis
from tests.daemon.harness import wait_for
from tests.django.project import Project

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

_WAIT = """
import time
def results(*results, seconds=30):
    end = time.monotonic() + seconds
    while time.monotonic() < end and not all(result.is_finished for result in results):
        time.sleep(0.05)
        for result in results:
            result.refresh()
    found = [result.return_value if result.status == "SUCCESSFUL" else str(result.status) for result in results]
    print(json.dumps(found))
from promises import tasks
from orders import tasks as shop
"""
_ORDER = f"""{_WAIT}
from django.test import Client
answer = Client().post("/orders/", {{"email": "ann@example.com", "amount": 30}}).json()
sent = shop.confirm.get_result(answer["task"])
total, count = shop.total.enqueue("ann@example.com"), shop.count.enqueue()
results(sent, total, count, tasks.breaks.enqueue("x"), tasks.mail.enqueue())
"""
_FAULTS = """
import django
django.setup()
import pytest
from orders.models import Order
from promises import jobs
from psched.testing import faults

def orders():
    return list(Order.objects.order_by("email").values_list("email", "amount"))

def no_orders():
    Order.objects.all().delete()

@pytest.fixture
def psched_app():
    return jobs.app

@faults(state=orders, reset=no_orders, seeds=1)
def test_order(psched_queue):
    jobs.order.submit("ann@example.com")

@faults(state=orders, reset=no_orders, seeds=1)
def test_order_once(psched_queue):
    jobs.order_once.submit(7, "ann@example.com")
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def project(request: pytest.FixtureRequest) -> Project:
    found: Project = request.getfixturevalue(f"on_{request.param}")
    return found


@pytest.fixture
def on_postgresql(lab: Lab, tmp_path: Path) -> Iterator[Project]:
    server = lab.shared(PostgreSQL)
    assert isinstance(server, PostgreSQL)
    if not _migrated_databases:
        template = server.create_database()
        _migrated(Project(tmp_path / "template", server.url(template)))
        _migrated_databases.append(template)
    with server.database() as url:
        name = url.rpartition("/")[2]
        with server.admin() as administrator:
            administrator.execute(f"DROP DATABASE {name}")
            administrator.execute(f"CREATE DATABASE {name} OWNER psched TEMPLATE {_migrated_databases[0]}")
        yield Project(tmp_path, url)


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Project:
    project = Project(tmp_path, None)
    file = project.folder / "shop.sqlite3"
    if not _migrated_files:
        _migrated(project)
        _migrated_files.append(file.read_bytes())
    file.write_bytes(_migrated_files[0])
    return project


_migrated_databases: list[str] = []
_migrated_files: list[bytes] = []
"""The bytes of a SQLite file with Django's and psched's tables. They take a second to make; a copy takes almost no
time.
"""


def _migrated(project: Project) -> Project:
    project.manage("migrate", "--verbosity=0")
    return project


def _workers(master: psutil.Process) -> int:
    count = 0
    for child in master.children():
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            count += child.name().startswith("psched: worker")
    return count


@pytest.mark.in_suite_on("postgresql")
def test_a_worker_runs_what_a_view_enqueues(project: Project) -> None:
    _order_confirmed(project)


@pytest.mark.in_suite_on("redis")
@pytest.mark.parametrize("database", ["mariadb", "redis"])
def test_the_sample_on_other_stores(database: str, lab: Lab, tmp_path: Path) -> None:
    if database == "mariadb":
        prerequisites.require_mysqlclient()
        with lab.shared(MariaDB).database() as url:
            _order_confirmed(_migrated(Project(tmp_path, url)))
        return
    with lab.shared(Redis).database() as url:
        settings = f'del PSCHED["database"]\nPSCHED.update(type="redis", url={url!r})\n'
        _order_confirmed(_migrated(Project(tmp_path, None, settings)))


def _order_confirmed(project: Project) -> None:
    with project.worker():
        assert project.python(_ORDER) == [None, 30, {"orders": 1, "attempt": 1}, "FAILED", "mail"]
    assert "To: ann@example.com" in project.output


@pytest.mark.in_suite_on("postgresql")
def test_a_schedule_runs_in_django(project: Project) -> None:
    project.manage("psched", "add", "tidy", "orders.forget", "* * * * * *", '{"below": 5}')
    project.manage("psched", "add", "sum", "default:promises.tasks.add", "* * * * * *", '{"args": [1, 2]}')
    with project.worker():
        wait_for(lambda: "0 orders deleted" in project.output, lambda: project.log)
        wait_for(
            lambda: "finished, the last one key=sum" in project.log or "key=sum" in project.log, lambda: project.log
        )
    assert "failed" not in project.log


@pytest.mark.in_suite_on("postgresql")
def test_a_worker_that_dies_costs_a_task_nothing(project: Project) -> None:
    program = f"{_WAIT}results(tasks.outlives.enqueue('once'))"
    with project.worker():
        assert project.python(program) == ["survived"]


def test_a_reload_takes_new_code_and_new_settings(on_sqlite: Project) -> None:
    project = on_sqlite
    with project.worker() as master:
        assert project.python(f"{_WAIT}results(tasks.mail.enqueue())") == ["mail"]
        assert _workers(master) == 1
        code = project.folder / "promises/tasks.py"
        code.write_text(code.read_text().replace('return "mail"', 'return "new mail"'))
        project.configure('PSCHED["processors"] = 2\n')
        master.send_signal(signal.SIGUSR1)
        wait_for(lambda: _workers(master) == 2, lambda: project.log, within=60)
        mail = f"{_WAIT}results(tasks.mail.enqueue())"
        wait_for(lambda: project.python(mail) == ["new mail"], lambda: project.log, within=60)
        project.configure('PSCHED["database"] = "defualt"\n')
        master.send_signal(signal.SIGUSR1)
        refusal = "reload refused: PSCHED: database: 'defualt' is not an alias of DATABASES; did you mean 'default'?"
        wait_for(lambda: refusal in project.log, lambda: project.log, within=60)
        project.configure("")


def test_the_daemon_in_the_background(on_sqlite: Project) -> None:
    project = on_sqlite
    try:
        assert "has started" in project.manage("pschedd", "start")
        before = int((project.folder / "psched.pid").read_text().split()[0])
        assert "psched: master [tested]" in " ".join(psutil.Process(before).cmdline())
        assert project.python(f"{_WAIT}results(tasks.add.enqueue(1, 2))") == [3]
    finally:
        assert "has stopped" in project.manage("pschedd", "stop")


@pytest.mark.trial
def test_the_daemon_in_the_background_is_reloaded_and_replaced(on_sqlite: Project) -> None:
    project = on_sqlite
    try:
        assert "has started" in project.manage("pschedd", "start")
        assert "has reloaded" in project.manage("pschedd", "reload")
        assert "was replaced" in project.manage("pschedd", "upgrade")
        assert "is running" in project.manage("pschedd", "status")
        assert project.python(f"{_WAIT}results(tasks.add.enqueue(1, 2))") == [3]
    finally:
        assert "has stopped" in project.manage("pschedd", "stop")
    assert "not running" in project.manage("pschedd", "status", code=3)


def test_the_master_does_not_import_the_users_modules(on_sqlite: Project) -> None:
    with on_sqlite.worker() as master:
        imports = [line.split() for line in (on_sqlite.folder / "imports").read_text().splitlines()]
    # manage.py has imported them, and became the master
    masters = [words for pid, *words in imports if int(pid) == master.pid]
    assert masters == [["psched", "run"]]
    assert len({pid for pid, *_ in imports}) > 1


def test_connections_are_closed_around_runs(on_postgresql: Project) -> None:
    project = on_postgresql
    program = f"{_WAIT}results(*(tasks.connected.enqueue() for _ in range(4)))"
    with project.worker():
        sessions = project.python(program)
    assert [before for before, _ in sessions] == [False] * 4
    assert len({session for _, session in sessions}) == 4


def test_connections_may_be_kept_and_are_replaced_when_they_were_ended(on_postgresql: Project, lab: Lab) -> None:
    project = on_postgresql
    program = f"{_WAIT}results(*(tasks.connected.enqueue() for _ in range(4)))"
    project.configure('DATABASES["default"].update(CONN_MAX_AGE=None, CONN_HEALTH_CHECKS=True)\n')
    with project.worker():
        sessions = project.python(program)
        assert sorted(before for before, _ in sessions) == [False, True, True, True]
        [session] = {session for _, session in sessions}
        with lab.shared(PostgreSQL).admin() as administrator:
            administrator.execute(f"SELECT pg_terminate_backend({session})")
        [[_, another]] = project.python(f"{_WAIT}results(tasks.connected.enqueue())")
    assert another != session


@pytest.mark.in_suite_on("postgresql")
def test_a_forked_process_has_connections_of_its_own(project: Project) -> None:
    with project.worker():
        assert project.python(f"{_WAIT}results(tasks.forks.enqueue())") == [[True, 1, 0, 1]]


def test_a_stop_cancels_a_coroutine_and_the_task_runs_again(on_sqlite: Project) -> None:
    project = on_sqlite
    notes = project.folder / "notes"
    with project.worker() as master:
        project.python(f"{_WAIT}tasks.slow.enqueue()\nprint(1)")
        wait_for(lambda: notes.exists() and "slow" in notes.read_text(), lambda: project.log)
        master.send_signal(signal.SIGQUIT)
        master.wait(20)
    assert project.python(
        "from psched.contrib.django.clients import queue\nprint(json.dumps([row.status for row in queue().list()]))"
    ) == ["waiting"]


def test_faults_show_which_handlers_of_a_project_are_idempotent(on_postgresql: Project) -> None:
    project = on_postgresql
    (project.folder / "test_faults.py").write_text(_FAULTS)
    (project.folder / "run_tests.py").write_text("import sys, pytest\nsys.exit(pytest.main(sys.argv[1:]))\n")
    printed = project.run("run_tests.py", "-q", "-p", "no:cacheprovider", "test_faults.py", code=1)
    assert "1 failed, 1 passed" in printed, printed
    assert "FAILED test_faults.py::test_order - Failed: not idempotent: the tasks" in printed
    assert "killed right after commit 1 of 1 (promises/jobs.py:" in printed, printed

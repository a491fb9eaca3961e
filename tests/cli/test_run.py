"""psched run: a worker in the foreground, with the application of the command line or of the configuration."""

from __future__ import annotations

import subprocess

import pytest

from psched.cli import pschedd
from tests.cli.commands import Commands
from tests.cli.worker import PATIENCE, running

APP = """
import psched
app = psched.App()
@app.task("t")
def handle(task):
    with open(task.data["file"], "a") as file:
        file.write(f"{task.scheduled_time}\\n")
"""


@pytest.fixture
def jobs(psched: Commands) -> Commands:
    """A command line with an application in `code/jobs.py`, and a schedule for every second.

    The handler writes a file, `ran`.
    """
    (psched.folder / "code").mkdir()
    (psched.folder / "code" / "jobs.py").write_text(APP)
    psched.ok("add", "every-second", "t", "* * * * * *", f'{{"file": "{psched.folder}/ran"}}')
    return psched


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "-I", "code", "-r", "jobs", "app"),
        ("-I", "code", "run", "jobs:app"),
        ("run", "-r", "code/jobs.py", "app"),
    ],
)
def test_the_command_line_names_the_application(jobs: Commands, arguments: tuple[str, ...]) -> None:
    jobs.use("sqlite:///../psched.db", "  app: absent:app\n  poll_interval: 0.1\n")
    with running(jobs, *arguments):
        pass


def test_without_one_the_configuration_s_application_runs(jobs: Commands) -> None:
    jobs.use("sqlite:///../psched.db", "  app: jobs:app\n  include: ../code\n  poll_interval: 0.1\n")
    with running(jobs, "run"):
        pass


def test_types_on_the_command_line_restrict_what_it_runs(jobs: Commands) -> None:
    more = "  app: jobs:app\n  include: ../code\n  poll_interval: 0.1\n  types: none\n"
    jobs.use("sqlite:///../psched.db", more)
    with running(jobs, "run", "--types", "other,t*"):
        pass


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("run",), "no application"),
        (("run", "absent:app"), "absent"),
        (("run", "-I", "code", "jobs:ap"), "did you mean 'app'?"),
        (("run", "-c", "/none.yml", "jobs:app"), "/none.yml"),
    ],
)
def test_what_cannot_be_run_is_reported_and_ends_the_start(
    jobs: Commands, arguments: tuple[str, ...], expected: str
) -> None:
    process = jobs.start(*arguments, stderr=subprocess.PIPE)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert expected in err.decode()
    assert "Traceback" not in err.decode()


@pytest.mark.parametrize("types", ["", " , "])
def test_types_that_name_nothing_are_refused(jobs: Commands, types: str) -> None:
    for arguments in (("run", "--types", types, "jobs:app"), ("queue", "run", "--types", "t", "--types", types)):
        outcome = jobs(*arguments)
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
        assert "--types is empty; give a type, a glob such as video.*, or remove the option" in outcome.err


def test_the_daemon_refuses_types_that_name_nothing(jobs: Commands, capsys: pytest.CaptureFixture[str]) -> None:
    assert pschedd.main(("-c", "etc/psched.yml", "--types", "", "status")) == 2
    assert "--types is empty; give a type" in capsys.readouterr().err


def test_a_missing_table_ends_the_start_and_names_init(jobs: Commands) -> None:
    jobs.use("sqlite:///../other.db")
    process = jobs.start("run", "-I", "code", "jobs:app", stderr=subprocess.PIPE)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "psched init" in err.decode()


def test_a_file_that_sqlite_cannot_open_ends_the_start_and_names_the_remedy(jobs: Commands) -> None:
    jobs.use("sqlite:///../psched.db")
    jobs.ok("init")
    for journal in jobs.folder.glob("psched.db-*"):
        journal.unlink()
    (jobs.folder / "psched.db-wal").mkdir()
    process = jobs.start("run", "-I", "code", "jobs:app", stderr=subprocess.PIPE)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert (
        "schedules: the tables cannot be checked: unable to open database file; let this user write the file and its "
        "folder; giving up\n"
    ) in err.decode()

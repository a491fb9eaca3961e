"""Psched(app) and `flask psched …`, by Flask's own test runner and as programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

import psched
from faultlab import forkserver_client
from psched.contrib.flask import Psched
from tests.daemon.harness import wait_for
from tests.programs import ROOT

Config = dict[str, Any]


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Config]:
    """A configuration with both sections on SQLite.

    Afterwards the configuration that `Psched` set for this process is removed.
    """
    yield {"type": "rdb", "url": f"sqlite:///{tmp_path}/psched.db", "schedules": {}, "queue": {}}
    psched.configure(None)


def application(config: Any) -> Flask:
    app = Flask("application")
    app.config["PSCHED"] = config
    Psched(app)
    return app


def run(app: Flask, *words: str) -> str:
    """Run a command that must succeed. Return its output."""
    done = app.test_cli_runner().invoke(args=["psched", *words])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_commands_use_the_configuration_of_the_application(config: Config) -> None:
    app = application(config)
    run(app, "init")
    run(app, "queue", "submit", "one", "mail", '{"to": "ada"}')
    assert [task["key"] for task in json.loads(run(app, "queue", "list", "--json"))] == ["one"]
    run(app, "add", "every-day", "report", "@daily", "{}")
    assert "report" in run(app, "list")
    assert "FAILED" not in run(app, "doctor")


def test_the_queue_is_that_of_the_process_and_of_task_functions(config: Config) -> None:
    app = application(config)
    run(app, "init")
    tasks = psched.App()

    @tasks.task
    def mail(to: str) -> None:
        pass

    key = mail.submit(to="ada").key
    jobs = app.extensions["psched"]
    assert jobs.queue[key].metadata().data == {"to": "ada"}


def test_a_factory_initialises_the_extension(config: Config) -> None:
    jobs = Psched()
    app = Flask("application")
    app.config["PSCHED"] = config
    jobs.init_app(app)
    run(app, "init")
    assert list(jobs.queue.list()) == []


def test_a_relative_path_starts_at_the_folder_of_the_application(config: Config, tmp_path: Path) -> None:
    (tmp_path / "psched.yml").write_text("development: {type: rdb, url: 'sqlite:///relative.db', queue: {}}\n")
    app = Flask("application", root_path=str(tmp_path))
    app.config["PSCHED"] = "psched.yml"
    jobs = Psched(app)
    run(app, "queue", "init")
    assert (tmp_path / "relative.db").exists()
    assert list(jobs.queue.list()) == []


def test_another_configuration_may_be_named(config: Config, tmp_path: Path) -> None:
    other = tmp_path / "other.yml"
    other.write_text(f"development: {{type: rdb, url: 'sqlite:///{tmp_path}/other.db'}}\n")
    run(application(config), "-c", str(other), "init")
    assert (tmp_path / "other.db").exists()
    assert not (tmp_path / "psched.db").exists()


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"type": "rdb", "url": "sqlite:///db", "quue": {}}, "quue: unknown key; did you mean 'queue'"),
        ("missing.yml", "missing.yml"),
        (42, "PSCHED: expected a dict or the path of a YAML file, got int"),
    ],
)
def test_a_wrong_configuration_is_refused_when_the_extension_is_initialised(given: Any, error: str) -> None:
    with pytest.raises(psched.ConfigError, match=error):
        application(given)


def test_an_error_of_a_command_is_one_line(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    done = application(config).test_cli_runner().invoke(args=["psched", "list"])
    assert done.exit_code == 1
    assert done.stderr.startswith("psched: the table") or "psched.db" in done.stderr
    assert len(done.stderr.splitlines()) == 1


_APPLICATION = """\
import os
from flask import Flask, current_app
import psched
from faultlab import forkserver_client
from psched.contrib.flask import Psched

tasks = psched.App()


def create_app():
    app = Flask(__name__)
    app.config.update(PSCHED={CONFIG}, VERSION="{VERSION}")
    Psched(app)

    @app.teardown_appcontext
    def teardown(error):
        print("torn down", flush=True)

    return app


@tasks.task("plain")
def plain():
    print("plain", current_app.config["VERSION"], flush=True)


@tasks.task("awaited")
async def awaited():
    print("awaited", current_app.config["VERSION"], flush=True)
"""


def write_application(folder: Path, version: str) -> None:
    config = {"type": "rdb", "url": "sqlite:///psched.db", "app": "shop:tasks", "poll_interval": 0.1, "queue": {}}
    text = _APPLICATION.replace("{CONFIG}", repr(config)).replace("{VERSION}", version)
    (folder / "shop.py").write_text(text)


def flask(folder: Path, *words: str) -> forkserver_client.Process:
    command = [str(Path(sys.executable).parent / "flask"), "--app", "shop", "psched", *words]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    with (folder / "output").open("a") as output:
        return forkserver_client.start(command, folder, environ, stdout=output, stderr=output)


@pytest.mark.timeout(180)
def test_handlers_run_in_a_context_of_the_application_and_a_reload_takes_new_code(tmp_path: Path) -> None:
    output = tmp_path / "output"

    def wait_until(text: str, times: int = 1) -> None:
        wait_for(lambda: output.read_text().count(text) >= times, output.read_text, within=60)

    write_application(tmp_path, "one")
    assert flask(tmp_path, "queue", "init").wait(60) == 0, output.read_text()
    master = flask(tmp_path, "run")
    try:
        with psched.open_queue({"type": "rdb", "url": f"sqlite:///{tmp_path}/psched.db"}) as queue:
            queue.submit("1", "plain")
            queue.submit("2", "awaited")
            wait_until("plain one")
            wait_until("awaited one")
            wait_until("torn down", 3)  # the first was that of `flask psched queue init`
            write_application(tmp_path, "two")
            master.send_signal(signal.SIGHUP)
            wait_until("has exited")
            queue.submit("3", "plain")
            wait_until("plain two")
            wait_for(lambda: queue["3"].metadata().status == "finished")
    finally:
        master.send_signal(signal.SIGTERM)
        assert master.wait(60) == 0, output.read_text()


def test_run_without_an_application_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "psched.contrib.flask", "run"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("psched: Could not locate a Flask application.")

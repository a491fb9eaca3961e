"""The programs in examples/ do what their READMEs say."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from faultlab import forkserver_client
from faultlab.ports import HOST, free_port
from faultlab.servers import Server
from tests.daemon.harness import wait_for
from tests.programs import ROOT, install_forked_programs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

EXAMPLES = ROOT / "examples"
INSTALLED = Path(sys.executable).parent
"""The folder with the programs of the frameworks."""
_FIRED = re.compile(r"report at (\d+) in (\d+)")


class Program:
    """A running program, with a folder and an output file of its own."""

    def __init__(self, command: Sequence[str], folder: Path, **environ: str) -> None:
        self._file = folder / f"{len(list(folder.glob('*.out')))}.out"
        environ = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
        self.process: forkserver_client.Process
        with self._file.open("w") as output:
            self.process = forkserver_client.start(command, folder, environ, stdout=output, stderr=output)

    @property
    def output(self) -> str:
        return self._file.read_text()

    def wait_for(self, condition: Callable[[str], object]) -> None:
        """Wait until the program's output fulfils a condition."""
        wait_for(lambda: condition(self.output), lambda: self.output, within=40)

    @property
    def descendants(self) -> list[psutil.Process]:
        """Return the program's descendants."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def stop(self, number: signal.Signals) -> None:
        """Send a signal. Check that the program ends with exit code 0, and that no process of it is left."""
        processes = self.descendants
        self.process.send_signal(number)
        assert self.process.wait(30) == 0, self.output
        wait_for(lambda: not any(_runs(process) for process in processes), lambda: f"{processes}\n{self.output}")

    def end(self) -> None:
        """Kill the program and its descendants."""
        if self.process.poll() is None:
            for process in [*self.descendants, psutil.Process(self.process.pid)]:
                process.kill()
            self.process.wait()


Start = Callable[..., Program]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the examples. psched's programs are in `bin`, where they are forked, and in `bin/real`."""
    shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True)
    install_forked_programs(tmp_path / "bin")
    return tmp_path


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """A function that starts a Python program, which is killed at the end of the test."""
    with ExitStack() as stack:

        def starting(*command: str, **environ: str) -> Program:
            program = Program(command, folder, **environ)
            stack.callback(program.end)
            return program

        yield starting


def _runs(process: psutil.Process) -> bool:
    """Return whether a process still runs. It may have become a zombie, where no init process reaps it."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def fired(output: str) -> tuple[Counter[int], set[str]]:
    """Return how often each occurrence was reported, and the pids of the processes that reported."""
    found = _FIRED.findall(output)
    return Counter(int(time) for time, _ in found), {pid for _, pid in found}


def post(url: str) -> dict[str, str]:
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=10) as answer:  # noqa: S310
        found: dict[str, str] = json.load(answer)
    return found


def psched(folder: Path, *words: str) -> str:
    """Run a command with the configuration of the examples, and return its output."""
    command = [folder / "bin/psched", "-c", "psched.yml", *words]
    return subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout


def test_the_plain_script(start: Start) -> None:
    script = start("plain.py")
    script.wait_for(lambda output: output.count("hello, every second") > 1)
    script.wait_for(lambda output: output.count("fetching https://example.com") == 2)
    script.stop(signal.SIGINT)
    assert "stopping when the running handlers are done" in script.output
    assert script.output.count("fetching") == 2


def test_typed_tasks(start: Start) -> None:
    script = start("typed_tasks.py")
    assert script.process.wait() == 0
    assert "Invoice(number=17, due=datetime.date(2026, 12, 23), lines=['for alice'])" in script.output
    assert "invoice 17 is due on 23.12.2026" in script.output


def test_two_processes_that_share_a_redis_and_one_that_is_killed(start: Start, redis: Server) -> None:
    with redis.database() as url:
        one, two = (start("shared.py", name, url) for name in ("one", "two"))
        one.wait_for(lambda output: "fired in one" in output + two.output and "fired in two" in output + two.output)
        one.process.kill()
        last = max(re.findall(r"(\d+) fired", one.output + two.output))
        two.wait_for(lambda output: any(time > last for time in re.findall(r"(\d+) fired", output)))
        two.stop(signal.SIGINT)
        one.process.wait()
    times = [int(time) for time in re.findall(r"(\d+) fired", one.output + two.output)]
    assert sorted(times) == list(range(min(times), max(times) + 1)), one.output + two.output


_GUNICORN = (str(INSTALLED / "gunicorn"), "--worker-class", "uvicorn_worker.UvicornWorker")
_SERVERS = {
    "uvicorn": (
        str(INSTALLED / "uvicorn"),
        "--host",
        HOST,
        "--port",
        "PORT",
        "--workers",
        "2",
        "--timeout-worker-healthcheck",
        "60",
    ),
    "gunicorn": (*_GUNICORN, "--bind", f"{HOST}:PORT", "--workers", "2"),
    "gunicorn-preload": (*_GUNICORN, "--preload", "--bind", f"{HOST}:PORT", "--workers", "2"),
}


_OTHERS = [("gunicorn-preload", "fastapi_app:app"), ("uvicorn", "starlette_app:app"), ("uvicorn", "litestar_app:app")]


@pytest.mark.in_suite_on("gunicorn-fastapi_app:app")
@pytest.mark.parametrize(
    ("server", "application"),
    [
        ("uvicorn", "fastapi_app:app"),
        ("gunicorn", "fastapi_app:app"),
        *(pytest.param(*pair, marks=pytest.mark.trial) for pair in _OTHERS),
    ],
)
def test_an_asgi_application_with_two_workers_that_are_reloaded(
    start: Start, folder: Path, server: str, application: str
) -> None:
    """The reload loses no occurrence, and none runs twice. Submitted tasks run."""
    web, port = _started(start, folder, server, application)
    keys = [post(f"http://{HOST}:{port}/mails/ada")["key"]]
    before = {str(process.pid) for process in web.descendants}
    web.process.send_signal(signal.SIGHUP)
    web.wait_for(lambda output: output.count("Application shutdown complete") == 2)
    web.wait_for(lambda output: fired(output)[1] - before and len(fired(output)[0]) > 6)
    keys.append(post(f"http://{HOST}:{port}/mails/grace")["key"])
    if application.startswith("fastapi"):
        assert post(f"http://{HOST}:{port}/images/cat")["key"]
        web.wait_for(lambda output: "thumbnail of cat" in output)
    _stop(web, shutdowns=4)
    daemon = start("bin/real/psched", "-c", "psched.yml", "run")
    daemon.wait_for(lambda output: output.count("mail to ada") == output.count("mail to grace") == 1)
    daemon.stop(signal.SIGTERM)
    assert all("finished" in psched(folder, "queue", "show", key) for key in keys)


@pytest.mark.in_suite_on("uvicorn-starlette_app:app", "gunicorn-preload-fastapi_app:app")
@pytest.mark.parametrize(("server", "application"), _OTHERS)
def test_an_asgi_application_with_two_workers(start: Start, folder: Path, server: str, application: str) -> None:
    """No occurrence is lost, and none runs twice. The submitted task is in the queue."""
    web, port = _started(start, folder, server, application)
    key = post(f"http://{HOST}:{port}/mails/ada")["key"]
    _stop(web, shutdowns=2)
    assert "waiting" in psched(folder, "queue", "show", key)


def _started(start: Start, folder: Path, server: str, application: str) -> tuple[Program, str]:
    psched(folder, "init")
    port = str(free_port())
    web = start(*(word.replace("PORT", port) for word in _SERVERS[server]), application)
    web.wait_for(lambda output: output.count("Application startup complete") == 2 and len(fired(output)[0]) > 1)
    return web, port


def _stop(web: Program, shutdowns: int) -> None:
    web.stop(signal.SIGTERM)
    occurrences = fired(web.output)[0]
    assert sorted(occurrences.elements()) == list(range(min(occurrences), max(occurrences) + 1)), web.output
    assert web.output.count("Application shutdown complete") == shutdowns
    assert "Traceback" not in web.output


@pytest.mark.parametrize("preloaded", [(), pytest.param(("--preload",), marks=pytest.mark.trial)], ids=["", "preload"])
def test_a_flask_application_and_its_daemon_that_are_reloaded(
    start: Start, folder: Path, preloaded: tuple[str, ...]
) -> None:
    """The reload loses no occurrence, and none runs twice. Each submitted task runs once."""
    flask = (str(INSTALLED / "flask"), "--app", "flask_app", "psched")
    for words in (["init"], ["add", "report", "report", "* * * * * *", "{}"]):
        assert start(*flask, *words).process.wait(40) == 0
    port = free_port()
    web = start(str(INSTALLED / "gunicorn"), *preloaded, "--workers", "2", "--bind", f"{HOST}:{port}", "flask_app:app")
    daemon = start(*flask, "run")
    web.wait_for(lambda output: output.count("Booting worker") == 2)
    for name in ("ada", "grace"):
        post(f"http://{HOST}:{port}/mails/{name}")
        daemon.wait_for(lambda output, name=name: f"mail to {name}: hello" in output and len(fired(output)[0]) > 2)
        if name == "ada":
            web.process.send_signal(signal.SIGHUP)
            daemon.process.send_signal(signal.SIGHUP)
            web.wait_for(lambda output: output.count("Booting worker") == 4)
            daemon.wait_for(lambda output: len(fired(output)[1]) == 2)
    web.stop(signal.SIGTERM)
    daemon.stop(signal.SIGTERM)
    assert daemon.output.count("mail to") == 2
    occurrences = fired(daemon.output)[0]
    assert sorted(occurrences.elements()) == list(range(min(occurrences), max(occurrences) + 1)), daemon.output
    assert "Traceback" not in web.output + daemon.output


def test_a_scheduler_in_flask_under_gunicorn_preloaded_with_two_workers(start: Start) -> None:
    port = free_port()
    server = start(
        str(INSTALLED / "gunicorn"), "--preload", "--workers", "2", "--bind", f"{HOST}:{port}",
        "--config", "flask_scheduler_gunicorn.py", "flask_scheduler:app",
    )  # fmt: skip
    server.wait_for(lambda output: len(fired(output)[0]) > 2)
    assert post(f"http://{HOST}:{port}/mails/grace")["key"]
    server.wait_for(lambda output: "mail to grace" in output and len(fired(output)[0]) > 4)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(20) == 0, server.output
    assert set(fired(server.output)[0].values()) == {1}
    assert "Traceback" not in server.output

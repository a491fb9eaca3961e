"""The examples in docs/examples do what they say."""

from __future__ import annotations

import json
import os
import re
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

from faultlab.ports import HOST, free_port
from faultlab.servers import Server
from tests.daemon.harness import wait_for
from tests.programs import ROOT

pytestmark = pytest.mark.slow

EXAMPLES = ROOT / "docs" / "examples"
_FIRED = re.compile(r"report at (\d+) in (\d+)")


class Program:
    """A program that runs in a folder of its own, and its output."""

    def __init__(self, command: Sequence[str], folder: Path, **environ: str) -> None:
        self._file = folder / f"{len(list(folder.glob('*.out')))}.out"
        with self._file.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": f"{ROOT}:{EXAMPLES}", **environ},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def output(self) -> str:
        return self._file.read_text()

    def wait_for(self, condition: Callable[[str], object]) -> None:
        """Wait until its output fulfils a condition."""
        wait_for(lambda: condition(self.output), lambda: self.output, within=40)

    def interrupt(self) -> None:
        """Send SIGINT, and check the exit code."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(20) == 0, self.output

    def end(self) -> None:
        """Kill its processes."""
        if self.process.poll() is None:
            tree = [*psutil.Process(self.process.pid).children(recursive=True), psutil.Process(self.process.pid)]
            for process in tree:
                process.kill()
            self.process.wait()


Start = Callable[..., Program]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A function that starts a program; the end of the test kills it."""
    with ExitStack() as stack:

        def starting(*command: str, **environ: str) -> Program:
            program = Program(command, tmp_path, **environ)
            stack.callback(program.end)
            return program

        yield starting


def fired(output: str) -> tuple[Counter[str], set[str]]:
    """Return how often each occurrence was reported, and in which processes."""
    found = _FIRED.findall(output)
    return Counter(time for time, _ in found), {pid for _, pid in found}


def post(url: str) -> dict[str, str]:
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=10) as answer:  # noqa: S310
        found: dict[str, str] = json.load(answer)
    return found


def test_the_plain_script(start: Start) -> None:
    script = start(str(EXAMPLES / "plain.py"))
    script.wait_for(lambda output: output.count("hello, every second") > 1)
    script.wait_for(lambda output: output.count("fetching https://example.com") == 2)
    script.interrupt()
    assert "stopping when the running handlers are done" in script.output
    assert script.output.count("fetching") == 2


def test_two_processes_that_share_a_redis_and_one_that_is_killed(start: Start, redis: Server) -> None:
    with redis.database() as url:
        one, two = (start(str(EXAMPLES / "shared.py"), name, url) for name in ("one", "two"))
        one.wait_for(lambda output: "fired in one" in output + two.output and "fired in two" in output + two.output)
        one.process.kill()
        last = max(re.findall(r"(\d+) fired", one.output + two.output))
        two.wait_for(lambda output: any(time > last for time in re.findall(r"(\d+) fired", output)))
        two.interrupt()
        one.process.wait()
    times = [int(time) for time in re.findall(r"(\d+) fired", one.output + two.output)]
    assert sorted(times) == list(range(min(times), max(times) + 1)), one.output + two.output


def test_fastapi_under_uvicorn_with_two_workers(start: Start) -> None:
    port = free_port()
    server = start("-m", "uvicorn", "fastapi_app:app", "--workers", "2", "--host", HOST, "--port", str(port))
    server.wait_for(lambda output: output.count("Application startup complete") == 2)
    assert post(f"http://{HOST}:{port}/mails/ada")["key"]
    server.wait_for(lambda output: "mail to ada" in output and len(fired(output)[0]) > 4)
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(20)
    assert set(fired(server.output)[0].values()) == {1}
    assert server.output.count("mail to ada") == 1
    assert server.output.count("Application shutdown complete") == 2


def test_flask_under_gunicorn_preloaded_with_two_workers(start: Start) -> None:
    port = free_port()
    server = start(
        "-m", "gunicorn", "--preload", "--workers", "2", "--bind", f"{HOST}:{port}",
        "--config", str(EXAMPLES / "flask_gunicorn.py"), "flask_app:app",
    )  # fmt: skip
    server.wait_for(lambda output: len(fired(output)[0]) > 2)
    assert post(f"http://{HOST}:{port}/mails/grace")["key"]
    server.wait_for(lambda output: "mail to grace" in output and len(fired(output)[0]) > 4)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(20) == 0, server.output
    assert set(fired(server.output)[0].values()) == {1}
    assert "Traceback" not in server.output

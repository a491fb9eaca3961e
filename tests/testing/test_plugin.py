"""The pytest plugin: what loading it costs, and its use beside other plugins."""

from __future__ import annotations

import subprocess
import sys

import pytest

_TEST = """
import psched
import psched.testing

app = psched.App()

@app.task("append", retry_wait=1)
def append(task):
    with open(task.data["file"], "a") as file:
        file.write("x")

def read(file):
    return file.read_text()

def empty(file):
    file.write_text("")

import pytest

@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    return path

@psched.testing.faults(state=read, reset=empty, seeds=1)
def test_append(psched_queue, file):
    psched_queue.submit("key", "append", {"file": str(file)})

@pytest.mark.parametrize("number", range(4))
def test_drain(psched_queue, psched_drain, file, number):
    psched_queue.submit("key", "append", {"file": str(file)})
    psched_drain()
    assert file.read_text() == "x"
"""


def test_pytest_imports_little_of_psched() -> None:
    """pytest must start quickly if no test uses psched's fixtures."""
    code = "import sys, psched.testing.plugin; print(*[name for name in sys.modules if name.startswith('psched')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"psched", "psched.errors", "psched.testing", "psched.testing.plugin"}


@pytest.mark.in_suite_on("alone")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_a_users_tests(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    pytester.makepyfile(test_users=_TEST)
    result = pytester.runpytest_subprocess("-W", "error", *options)
    output = result.stdout.str()
    assert result.parseoutcomes() == {"passed": 4, "failed": 1}, output
    assert "not idempotent: the tasks leave a different state with a fault than without" in output
    assert "fault: delivered twice, task append key" in output
    assert "-'x'" in output
    assert "+'xx'" in output

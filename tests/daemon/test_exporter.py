"""psched exporter, and pschedd status --json: against a real daemon, and without one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from faultlab import forkserver_client
from tests.daemon.harness import Daemon
from tests.daemon.pschedd import Pschedd

HERE = Path(sys.executable).parent


@contextmanager
def exporter(folder: Path, *options: str) -> Iterator[str]:
    """Run an exporter on a free port; yield its address."""
    command = [str(HERE / "psched"), "exporter", "--listen", "127.0.0.1:0", *options]
    with forkserver_client.start(command, folder, os.environ, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline().decode()
            yield line.split()[-1].removesuffix("/metrics")
        finally:
            process.terminate()
            assert process.wait() == 0


def get(address: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310 – of this test
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def psched(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return forkserver_client.run([str(HERE / "psched"), *words], folder, timeout=60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "etc").mkdir()
    config = {"type": "rdb", "url": "sqlite:///psched.db", "pid_file": "psched.pid", "app": "app:app"}
    (tmp_path / "etc/psched.yml").write_text(yaml.safe_dump({"development": config}))
    return tmp_path


def test_a_daemon_is_healthy_and_ready_and_its_runs_are_counted(pschedd: Pschedd) -> None:
    pid = pschedd.start()
    pschedd.add("s1", "short")
    pschedd.wait_for("short")
    counted = re.compile(r'^psched_runs_total{outcome="finished",section="schedules",type="short"} [1-9]', re.MULTILINE)
    with exporter(pschedd.folder) as address:
        pschedd.wait_until(lambda: counted.search(get(f"{address}/metrics")[1]))
        assert 'psched_database_up{section="schedules"} 1.0' in get(f"{address}/metrics")[1]
        assert get(f"{address}/healthz") == (200, "ok\n")
        assert get(f"{address}/readyz") == (200, "ok\n")
        assert get(f"{address}/nothing")[0] == 404
        status = json.loads(pschedd("status", "--json").stdout)
        shown = status["state"], status["pid"], status["healthy"], status["ready"], status["troubles"]
        assert shown == ("running", pid, True, True, [])
        assert [child["name"] for child in status["children"]] == ["worker 1"]
        counters = pschedd.etc / "psched.pid.metrics"
        assert counters.exists()
        assert pschedd("stop").returncode == 0
        assert not counters.exists()
        assert get(f"{address}/healthz")[0] == 503
        assert "psched_daemon_up 0.0" in get(f"{address}/metrics")[1]
    stopped = pschedd("status", "--json", "--pid-file", str(pschedd.etc / "psched.pid"))
    assert (stopped.returncode, json.loads(stopped.stdout)["state"]) == (3, "stopped")


def test_a_probe_loads_no_database_library_and_no_configuration(tmp_path: Path) -> None:
    code = (
        "import sys; from psched.cli.entry_point import pschedd;"
        "sys.argv[1:] = ['status', '--json', '--pid-file', 'pid'];"
        "code = pschedd();"
        "slow = {'sqlalchemy', 'yaml', 'croniter', 'attrs', 'click', 'psutil', 'logging', 'dataclasses', 'tempfile'};"
        "loaded = slow & sys.modules.keys();"
        "sys.exit(f'{code} {loaded}')"
    )
    (tmp_path / "pid").touch()
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "3 set()"
    assert json.loads(done.stdout)["healthy"] is False


def test_a_database_that_is_away_is_reported(folder: Path) -> None:
    text = (folder / "etc/psched.yml").read_text().replace("sqlite:///psched.db", "mysql://u:p@127.0.0.1:1/d")
    (folder / "etc/psched.yml").write_text(text)
    with exporter(folder) as address:
        assert 'psched_database_up{section="schedules"} 0.0' in get(f"{address}/metrics")[1]
        assert get(f"{address}/readyz")[0] == 503


def test_a_text_file_is_written_once(folder: Path) -> None:
    done = psched(folder, "exporter", "--textfile", "psched.prom", "--once")
    assert (done.returncode, done.stdout) == (0, "")
    assert "psched_daemon_up 0.0" in (folder / "psched.prom").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give either --listen HOST:PORT or --textfile PATH"),
        (["--listen", ":1", "--textfile", "x"], "give either --listen HOST:PORT or --textfile PATH"),
        (["--listen", "9807"], "expected HOST:PORT such as 127.0.0.1:9807 or [::1]:9807, got '9807'"),
        (["--listen", "127.0.0.1:99999"], "expected HOST:PORT"),
        (
            ["--textfile", "missing/psched.prom", "--once"],
            "psched: cannot write missing/psched.prom: No such file or directory",
        ),
        (["--listen", "192.0.2.1:9807"], "psched: cannot listen on 192.0.2.1:9807: Cannot assign requested address"),
    ],
)
def test_wrong_options_get_one_line(folder: Path, options: list[str], message: str) -> None:
    done = psched(folder, "exporter", *options)
    assert done.returncode in (1, 2)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("warning:")]
    assert len(lines) == 1
    assert message in lines[0]


def test_json_is_refused_where_it_means_nothing(pschedd: Pschedd) -> None:
    done = pschedd("stop", "--json")
    assert (done.returncode, "--json works only with status, not with stop" in done.stderr) == (2, True)


def test_a_daemon_that_cannot_write_its_counters_runs_all_the_same(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon(metrics_file="missing/counters").start()
    daemon.wait_for_log("metrics are not counted: ")
    assert "missing/counters: No such file or directory (metrics_file)" in daemon.log
    daemon.add("s1", "quick")
    daemon.wait_for_trace("ran")
    daemon.stop()


def test_a_second_master_leaves_the_counters_of_the_first_alone(tmp_path: Path) -> None:
    counters = tmp_path / "counters"
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with (
        Daemon(tmp_path / "a", metrics_file=str(counters)) as first,
        Daemon(tmp_path / "b", metrics_file=str(counters)) as second,
    ):
        first.start()
        inode = counters.stat().st_ino
        second.start()
        second.wait_for_log(
            f"belongs to another master, pid {first.process.pid}; give each master a metrics_file of its own"
        )
        second.stop()
        assert counters.stat().st_ino == inode
        first.stop()
        assert not counters.exists()

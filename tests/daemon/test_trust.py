"""Rows in tables are data, never code; passwords do not leak; and root loads no code of the configured user."""

from __future__ import annotations

import json
import os
import pwd
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from faultlab.laboratory import Lab
from faultlab.postgresql import PostgreSQL
from faultlab.prerequisites import not_run
from faultlab.servers import PASSWORD
from tests.daemon.harness import Daemon
from tests.daemon.pschedd import Pschedd
from tests.programs import install_programs

ASKS_FOR_CODE = ["os:system", "psched.handlers.command:Command", "command", "__import__('os')", "app.app", "posix"]
"""Types that name existing code, but no route of the application."""
WHO_LOADS = """\
import os, pathlib, psched
pathlib.Path(__file__).with_name("loaded").open("a").write(f"{os.getresuid()} {os.getresgid()}\\n")
app = psched.App()
app.task("any")(print)
"""
WHO_IMPORTS = """\
import os, pathlib
pathlib.Path(__file__).parents[1].joinpath("loaded").open("a").write(f"{os.getresuid()} {os.getresgid()}\\n")
"""


def test_a_type_is_looked_up_in_the_routes_and_never_imported(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon(retry_wait=300).start()
    for number, type_ in enumerate(ASKS_FOR_CODE):
        daemon.add(f"key{number}", type_)
    daemon.add("last", "quick")
    daemon.wait_for_trace("ran", "last")
    with daemon.schedules() as schedules:
        assert [(row.attempts, row.node) for row in schedules.list() if row.key != "last"] == [(0, None)] * 6
    assert {trace["key"] for trace in daemon.traces()} == {"last"}
    daemon.stop()


def test_no_password_is_in_the_process_list_or_the_log(make_daemon: Callable[..., Daemon], lab: Lab) -> None:
    with lab.shared(PostgreSQL).database() as url:
        daemon = make_daemon(url=url).start()
        daemon.add("key", "quick")
        daemon.wait_for_trace("ran")
        daemon.master.send_signal(1)
        daemon.wait_for_log("received SIGHUP")
        told = [*daemon.titles(), *map(command_line, family(daemon)), daemon.log]
        daemon.stop()
    assert PASSWORD in url
    assert [text for text in told if PASSWORD in text] == []


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can open. pytest closes the folders above its own to other users at each start."""
    with tempfile.TemporaryDirectory(prefix="psched-trust-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_root_loads_no_code_of_the_application(open_folder: Path) -> None:
    """With `user:`, the master, its dry runs and its workers become that user before they load the application."""
    if os.geteuid() != 0:
        not_run("only root can become another user, run the tests as root")
    pschedd = prepared(open_folder)
    try:
        started = pschedd("start")
        assert started.returncode == 0, started.stderr
        assert pschedd("reload").returncode == 0
        account = pwd.getpwnam("nobody")
        loaded = (open_folder / "loaded").read_text().splitlines()
        assert set(loaded) == {f"{(account.pw_uid,) * 3} {(account.pw_gid,) * 3}"}
    finally:
        pschedd("stop", "--immediate")


def test_no_command_run_by_root_imports_modules_that_the_configuration_names(open_folder: Path) -> None:
    """A store that is not psched's (`type: package.module`) is also code of the configured user."""
    if os.geteuid() != 0:
        not_run("only root can become another user, run the tests as root")
    pschedd = prepared(open_folder)
    package = open_folder / "stores"
    package.mkdir()
    (package / "__init__.py").write_text(WHO_IMPORTS)
    (package / "own.py").write_text(WHO_IMPORTS + "from psched.backends.rdb import open_stores\n")
    (open_folder / "loaded").touch()
    os.chown(open_folder / "loaded", pwd.getpwnam("nobody").pw_uid, -1)
    pschedd.configure('"type": "rdb"', '"type": "stores.own"')
    program = pschedd.folder / "bin/pschedd"
    program.write_text(
        program.read_text().replace("import sys\n", f"import sys\nsys.path.insert(0, {str(open_folder)!r})\n")
    )
    try:
        assert pschedd("status").returncode == 3
        for action in ("start", "status", "reload", "reopen-logs", "restart"):
            done = pschedd(action)
            assert done.returncode == 0, (action, done.stderr)
    finally:
        pschedd("stop", "--immediate")
    account = pwd.getpwnam("nobody")
    loaded = (open_folder / "loaded").read_text().splitlines()
    assert set(loaded) == {f"{(account.pw_uid,) * 3} {(account.pw_gid,) * 3}"}


def prepared(folder: Path) -> Pschedd:
    """Prepare a daemon whose application records which user loads it.

    Only the configured user may write to the folder.
    """
    (folder / "etc").mkdir()
    (folder / "app.py").write_text(WHO_LOADS)
    config = {"type": "rdb", "url": "sqlite:///../psched.db", "app": "app:app", "include": "..", "user": "nobody"}
    config |= {"log": "../psched.log", "pid_file": "../psched.pid", "group": "nogroup"}
    (folder / "etc/psched.yml").write_text(json.dumps({"development": config}))
    install_programs(folder / "bin")
    pschedd = Pschedd(folder)
    pschedd.create_tables()
    subprocess.run(["chown", "-R", "nobody:nogroup", folder], check=True)
    return pschedd


def family(daemon: Daemon) -> list[psutil.Process]:
    return [daemon.master, *daemon.master.children(recursive=True)]


def command_line(process: psutil.Process) -> str:
    """Return the command line of a process; an empty string if the process has just been replaced."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


@pytest.mark.parametrize(
    "word", [r"\bpickle\b", r"\beval\(", r"\bexec\(", r"\bos\.system\b", "shell=True", r"\bmarshal\b"]
)
def test_nothing_turns_data_into_code(word: str) -> None:
    """The only exception is a Lua script of psched's, which the Redis server evaluates."""
    allowed = {"client.py": "client.eval(script.text"}
    source = Path(__file__).parents[2] / "psched"
    found = [
        (path.name, line)
        for path in source.rglob("*.py")
        for line in path.read_text().splitlines()
        if re.search(word, line) and allowed.get(path.name, "\0") not in line
    ]
    assert found == []

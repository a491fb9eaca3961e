"""Fixtures: a machine with psched installed as in docs/operations.md, a SQLite file, and an application with traces."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from psched.config import from_mapping
from psched.schedules.collection import open_schedules
from tests.systemd.machine import Machine, boot, python_files, require_machine
from tests.systemd.service import CHECKOUT, Service, follow_documents

_ROOT = Path(__file__).parents[2]
_CONFIG = """\
production:
  type: rdb
  url: sqlite:////var/lib/psched/psched.db
  app: app:app
  include: /srv
  log: /var/log/psched/psched.log
  pid_file: /run/psched/pschedd.pid
  poll_interval: 0.1
  retry_wait: 1
  child_fork_frequency_limit: 0.1
  processors: 1
"""
_APPLICATION = """\
import os, subprocess, time
from pathlib import Path
import psched

app = psched.App()

@app.task("short")
def short(task):
    Path("/var/lib/psched/environment").write_text("\\n".join(os.environ))
    with open(f"/var/lib/psched/short", "a") as trace:
        trace.write(f"{os.getpid()}\\n")

@app.task("long")
def long(task):
    helper = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    Path("/var/lib/psched/long-began").touch()
    while not Path("/var/lib/psched/long-may-end").exists():
        time.sleep(0.05)
    helper.communicate()
    Path("/var/lib/psched/long-ended").write_text(str(helper.returncode))
"""
_IMPATIENT = """\
[Service]
WatchdogSec=2
RestartSec=100ms
"""


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Machine]:
    """A machine on which the steps of docs/operations.md were done, up to the editing of the configuration."""
    require_machine()
    files, binds = python_files(_ROOT / "psched")
    for folder in ("etc", "systemd"):
        binds[_ROOT / folder] = f"{CHECKOUT}/{folder}"
    for unit in ("pschedd", "pschedd@"):
        files[f"/etc/systemd/system/{unit}.service.d/impatient.conf"] = _IMPATIENT
    files["/srv/app.py"] = _APPLICATION
    with boot(tmp_path, files, binds) as machine:
        machine.run("ldconfig")
        follow_documents(machine, "install")
        yield machine


@pytest.fixture
def machine(installed: Machine) -> Machine:
    """A machine whose configuration names a SQLite file."""
    (installed.root / "etc/psched/psched.yml").write_text(_CONFIG)
    return installed


@pytest.fixture
def service(machine: Machine, tmp_path: Path) -> Service:
    """A service that is not started, with tables and a schedule that is due every second."""
    service = Service(machine)
    path = tmp_path / "psched.db"
    section = from_mapping({"type": "rdb", "url": f"sqlite:///{path}"}).sections[0]
    with open_schedules(section, "laboratory") as schedules:
        schedules.store.create_tables()
        schedules.add("s1", "short", cron="* * * * * *", next_time=int(time.time()))
    copy = shutil.copy(path, service.state / "psched.db")
    shutil.chown(copy, *(service.state.stat()[4:6]))
    return service


@pytest.fixture
def running(service: Service) -> Service:
    """A started service that has run its first task."""
    service.systemctl("start")
    service.wait_for_trace("short")
    return service

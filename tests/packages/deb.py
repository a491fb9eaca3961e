"""`scripts/test-deb`: installs, upgrades and removes the Debian package on a machine with systemd."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

from tests.daemon.harness import wait_for
from tests.systemd.machine import boot, require_machine
from tests.systemd.service import Service

_CONFIG = """\
production:
  type: rdb
  url: sqlite:////var/lib/psched/psched.db
  app: jobs:app
  include: /srv
  processors: 1
  poll_interval: 0.2
  alive_time: 15
  schedules: {}
  queue: {}
"""
_APPLICATION = """\
import time
from pathlib import Path

import psched

app = psched.App()
state = Path("/var/lib/psched")


def tell(task, event):
    with open(state / "traces", "a") as traces:
        traces.write(f"{task.key} {event} {task.attempts}\\n")


@app.task("long")
def long(task):
    tell(task, "began")
    while not (state / "may-end").exists():
        time.sleep(0.1)
    tell(task, "ended")


@app.task("short")
def short(task):
    tell(task, "ended")
"""
_PSCHEDD = ("/usr/bin/pschedd", "--pid-file", "/run/psched/pschedd.pid")


def main(work: str, package: str, later_package: str) -> int:
    require_machine()
    folder = Path(work)
    packages = folder / "root/srv/packages"
    packages.mkdir(parents=True)
    first, later = (Path(shutil.copy(path, packages)).name for path in (package, later_package))
    with boot(folder / "machine", {"/srv/jobs.py": _APPLICATION}, {}, folder / "root") as machine:
        service = PackagedService(machine)
        try:
            for part, name in (
                (try_install, first),
                (try_run, first),
                (try_upgrade, later),
                (try_refused_upgrade, later),
            ):
                part(service, name)
                print(f"test-deb: {part.__name__.removeprefix('try_')}: ok", flush=True)
            try_removal(service)
            print("test-deb: removal: ok", flush=True)
        except BaseException:
            print(service.explain(), machine.run("journalctl", "--no-pager", check=False)[-20000:], file=sys.stderr)
            raise
    return 0


class PackagedService(Service):
    """The service that the package installs."""

    def apt(self, *words: str) -> str:
        command = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "--quiet=2", "--yes", "--no-install-recommends")
        return self.machine.run("sh", "-c", f"{' '.join([*command, *words])} 2>&1", timeout=600)

    def traces(self) -> list[str]:
        path = self.state / "traces"
        return path.read_text().splitlines() if path.exists() else []

    def wait_for_line(self, line: str) -> None:
        wait_for(lambda: line in self.traces(), self.explain, 60)

    def version(self) -> str:
        found: str = json.loads(self.machine.run(*_PSCHEDD, "--json", "status"))["version"]
        return found


def version_of(name: str) -> str:
    return name.split("_")[1]


def try_install(service: PackagedService, name: str) -> None:
    """The package installs a user, folders, commands, units, man pages and completion, and starts nothing."""
    machine = service.machine
    print(service.apt("install", f"/srv/packages/{name}"))
    assert version_of(name) in machine.run("psched", "--version")
    etc, var = (
        ("/etc/psched", "/etc/psched/psched.yml", "/etc/psched/environment"),
        ("/var/lib/psched", "/var/log/psched"),
    )
    modes = machine.run("stat", "--format=%n %a %U:%G", *etc, *var).splitlines()
    assert modes == [
        "/etc/psched 750 root:psched",
        "/etc/psched/psched.yml 640 root:psched",
        "/etc/psched/environment 640 root:psched",
        "/var/lib/psched 750 psched:psched",
        "/var/log/psched 750 psched:psched",
    ], modes
    for unit in ("pschedd", "pschedd@staging"):
        assert machine.show(unit, "ActiveState", "LoadState") == {"ActiveState": "inactive", "LoadState": "loaded"}
    files = machine.run("dpkg", "-L", "psched").splitlines()
    for part in (
        "/man1/psched-queue-submit.1.gz",
        "/completions/psched",
        "/_pschedd",
        "/psched.fish",
        "/logrotate.d/psched",
    ):
        assert [path for path in files if path.endswith(part)], part
    assert not [path for path in files if path.endswith(".pyc")]
    assert machine.run("find", "/opt/psched", "-name", "*.pyc"), "compiled: the service may not write there"
    machine.run("bash", "-n", "/usr/share/bash-completion/completions/psched")
    for module in (
        "psycopg",
        "redis",
        "prometheus_client",
        "starlette",
        "icalendar",
        "opentelemetry.sdk",
        "sentry_sdk",
    ):
        machine.run("/opt/psched/bin/python", "-c", f"import {module}")


def try_run(service: PackagedService, name: str) -> None:
    """The service runs a task."""
    machine = service.machine
    (machine.root / "etc/psched/psched.yml").write_text(_CONFIG)
    service.psched("init")
    service.systemctl("start")
    service.wait_until_active()
    assert service.version() == version_of(name)
    service.psched("queue", "submit", "first", "short", "{}")
    service.wait_for_line("first ended 1")


def try_upgrade(service: PackagedService, name: str) -> None:
    """An upgrade neither waits for a running task nor interrupts it. The new version runs the tasks that follow."""
    machine = service.machine
    old = machine.main("pschedd")
    service.psched("queue", "submit", "during", "long", "{}")
    service.wait_for_line("during began 1")
    print(service.apt("install", f"/srv/packages/{name}"))
    assert machine.main("pschedd") != old
    assert old.is_running()
    assert service.version() == version_of(name)
    service.psched("queue", "submit", "after", "short", "{}")
    service.wait_for_line("after ended 1")
    assert "during ended 1" not in service.traces()
    (service.state / "may-end").touch()
    service.wait_for_line("during ended 1")
    wait_for(lambda: not old.is_running(), service.explain)
    service.wait_until_active()
    assert service.traces() == ["first ended 1", "during began 1", "after ended 1", "during ended 1"]
    assert json.loads(service.psched("--json", "queue", "show", "during"))["status"] == "finished"
    assert (machine.root / "etc/psched/psched.yml").read_text() == _CONFIG


def try_refused_upgrade(service: PackagedService, name: str) -> None:
    """If the new version cannot start, the package is installed nevertheless, and the old daemon keeps running."""
    machine = service.machine
    before = machine.main("pschedd")
    application = machine.root / "srv/jobs.py"
    application.write_text("import nothing_of_this_name\n")
    told = service.apt("install", "--reinstall", f"/srv/packages/{name}")
    assert re.search("still runs the old version", told), told
    application.write_text(_APPLICATION)
    assert machine.main("pschedd") == before
    service.psched("queue", "submit", "later", "short", "{}")
    service.wait_for_line("later ended 1")


def try_removal(service: PackagedService) -> None:
    """Removal stops the daemon. A purge deletes the configuration, but not the database."""
    machine = service.machine
    service.apt("remove", "psched")
    assert machine.show("pschedd", "ActiveState")["ActiveState"] == "inactive"
    assert (machine.root / "etc/psched/psched.yml").exists()
    assert not (machine.root / "opt/psched").exists()
    service.apt("purge", "psched")
    assert not (machine.root / "etc/psched").exists()
    assert (machine.root / "var/lib/psched/psched.db").exists()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""The documented steps with a password: a typed one, which is changed later, and one in a credential of systemd."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from faultlab.login import Login, made_login
from faultlab.servers import Server
from tests.daemon.harness import wait_for
from tests.systemd.machine import Machine
from tests.systemd.service import Service, follow_documents

_JOBS = """\
import os
from pathlib import Path
import psched

app = psched.App()

@app.task("short")
def short(task):
    Path("/var/lib/psched/environment").write_text("\\n".join(os.environ))
    Path("/var/lib/psched/short").touch()
"""
_REFUSED = "the database refuses this user"
_LEASE_ENDS = 60.0
"""Seconds. A run whose settlement was refused keeps its lease for 30 s or a little longer."""


@pytest.fixture
def login(postgresql: Server) -> Iterator[Login]:
    """A database user whose password is "secret", and who has a database."""
    database = postgresql.create_database()
    with made_login(postgresql, database) as login:
        login.accept("secret")
        yield login
        postgresql.drop_database(database)


@pytest.fixture
def service(installed: Machine) -> Service:
    return Service(installed)


def test_the_documented_steps_work_with_a_password_and_a_reload_changes_it(service: Service, login: Login) -> None:
    _configure(service, login, "${PSCHED_DATABASE_PASSWORD}")
    for step in ("password", "start"):
        follow_documents(service.machine, step)
    service.psched("add", "s1", "short", "* * * * * *", "{}")
    service.wait_for_trace("short")
    assert "PSCHED_DATABASE_PASSWORD" not in (service.state / "environment").read_text(), "handlers are not given it"
    main = service.machine.main("pschedd")
    psched = ("/opt/psched/bin/psched", "-e", "production", "-c", "/etc/psched/psched.yml", "list")
    assert "s1" in service.machine.run(*psched), "root needs no other words than the service's user"
    with pytest.raises(AssertionError, match="Permission denied; run the command as root or as the service's user"):
        service.machine.run("runuser", "-u", "nobody", "--", *psched)

    login.refuse(accepted="changed")
    wait_for(lambda: _REFUSED in service.properties("StatusText")["StatusText"], service.explain)
    secrets = service.machine.root / "etc/psched/environment"
    secrets.write_text("PSCHED_DATABASE_PASSWORD=changed\n")
    assert "s1" in service.psched("list"), "commands have the new password at once"
    service.forget_traces()
    follow_documents(service.machine, "rotate")
    service.wait_for_trace("short", within=_LEASE_ENDS)
    wait_for(lambda: _REFUSED not in service.properties("StatusText")["StatusText"], service.explain)
    assert service.machine.main("pschedd") == main


def test_a_credential_of_systemd_is_the_password(service: Service, login: Login) -> None:
    machine = service.machine
    _configure(service, login, "${file:${CREDENTIALS_DIRECTORY}/db-password}")
    secret = machine.root / "etc/psched/db-password"
    secret.write_text("secret\n")
    secret.chmod(0o600)
    drop_in = machine.root / "etc/systemd/system/pschedd.service.d/credential.conf"
    drop_in.write_text("[Service]\nLoadCredential=db-password:/etc/psched/db-password\n")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", "dbus.socket")
    follow_documents(machine, "credential")
    service.systemctl("start")
    with pytest.raises(AssertionError, match="the environment variable CREDENTIALS_DIRECTORY is not set"):
        service.psched("list")
    config = machine.root / "etc/psched/psched.yml"
    config.write_text(config.read_text().replace("${CREDENTIALS_DIRECTORY}", "/run/credentials/pschedd.service"))
    service.psched("add", "s1", "short", "* * * * * *", "{}")
    service.wait_for_trace("short")


def test_the_steps_typed_again_keep_configuration_and_passwords(installed: Machine) -> None:
    for name in ("psched.yml", "environment"):
        (installed.root / "etc/psched" / name).write_text(f"edited {name}\n")
    follow_documents(installed, "install")
    for name in ("psched.yml", "environment"):
        path: Path = installed.root / "etc/psched" / name
        assert path.read_text() == f"edited {name}\n"
        assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (0, 0o640)


def _configure(service: Service, login: Login, password: str) -> None:
    """Edit the installed example of a configuration as an operator would: only its `url:`. Install an application."""
    config = service.machine.root / "etc/psched/psched.yml"
    url = login.url.replace("rotated", password)
    text, count = re.subn(r"^  url: mysql:.*$", lambda _: f"  url: {url}", config.read_text(), flags=re.MULTILINE)
    assert count == 1
    config.write_text(text)
    jobs = service.machine.root / "opt/jobs"
    jobs.mkdir()
    (jobs / "jobs.py").write_text(_JOBS)

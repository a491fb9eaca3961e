"""`scripts/test-wheel`: installs the wheel in a clean virtualenv for each extra, and then uses this extra."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
import venv
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from faultlab.laboratory import Lab
from faultlab.mariadb import MariaDB
from faultlab.ports import free_port
from faultlab.postgresql import PostgreSQL
from faultlab.redis import Redis
from faultlab.servers import Server
from tests.daemon.harness import wait_for
from tests.programs import ROOT
from tests.unit.http_receiver import Receiver

_APPLICATION = """\
{head}
from pathlib import Path
import psched

app = psched.App()

@app.task
def note(text: str) -> None:
    Path("noted").write_text(text)
    {body}
"""
_CALENDAR = """\
BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//test//test//EN
BEGIN:VEVENT
UID:1
DTSTART;VALUE=DATE:20260101
RRULE:FREQ=YEARLY
SUMMARY:New Year
END:VEVENT
END:VCALENDAR
"""


class Installed:
    """A virtualenv with the wheel and one extra, and a folder for its programs."""

    def __init__(self, folder: Path, wheel: Path, extra: str) -> None:
        self.folder = folder
        self._bin = folder / "venv/bin"
        venv.create(folder / "venv", with_pip=True)
        named = f"{wheel}[{extra}]" if extra else str(wheel)
        self.run("python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", named)
        self.run("python", "-m", "pip", "check")

    def command(self, *words: str) -> list[str]:
        return [str(self._bin / words[0]), *words[1:]]

    def environ(self, **variables: str) -> dict[str, str]:
        """Return environment variables by which no program finds this checkout."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PSCHED_", "DJANGO_"))
        }
        return {**kept, **variables}

    def run(self, *words: str, **variables: str) -> str:
        done = subprocess.run(
            self.command(*words),
            cwd=self.folder,
            env=self.environ(**variables),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(words)} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    @contextmanager
    def running(self, *words: str, **variables: str) -> Iterator[None]:
        """Run a program. At the end of the block it must end by SIGTERM, with exit code 0 or by the signal itself."""
        log = self.folder / "output"
        with (
            log.open("w") as output,
            subprocess.Popen(
                self.command(*words), cwd=self.folder, env=self.environ(**variables), stdout=output, stderr=output
            ) as process,
        ):
            try:
                yield
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) in (0, -signal.SIGTERM), log.read_text()
            except BaseException:
                print(log.read_text(), file=sys.stderr)
                raise
            finally:
                process.kill()

    def write(self, url: str = "sqlite:///psched.db", head: str = "", body: str = "", **keys: object) -> None:
        """Write a configuration, and an application with one task. `keys`: further keys of the configuration."""
        config = {"type": "redis" if url.startswith("redis") else "rdb", "url": url, "app": "jobs:app", "include": "."}
        every = {**config, "schedules": {}, "queue": {}, "pid_file": "psched.pid", "poll_interval": 0.1, **keys}
        (self.folder / "psched.yml").write_text(json.dumps({"development": every}))
        (self.folder / "jobs.py").write_text(_APPLICATION.format(head=head, body=body))

    def psched(self, *words: str) -> str:
        return self.run("psched", "-c", "psched.yml", *words)

    def work(self, **variables: str) -> None:
        """Make the tables, submit a task, and let a worker run it."""
        self.psched("init")
        self.psched("queue", "submit", "first", "jobs.note", '{"text": "done"}')
        with self.running("psched", "-c", "psched.yml", "run", **variables):
            self.wait_for((self.folder / "noted").exists)
            self.wait_for(lambda: '"finished"' in self.psched("--json", "queue", "show", "first"))

    def wait_for(self, condition: Callable[[], object]) -> None:
        wait_for(condition, (self.folder / "output").read_text, 60)


def use_none(installed: Installed, lab: Lab) -> None:
    installed.write()
    installed.work()
    installed.psched("add", "key", "jobs.note", "0 9 * * *", '{"text": "x"}')
    assert json.loads(installed.psched("--json", "list"))[0]["key"] == "key"
    assert installed.run("pschedd", "--version")


def use_postgresql(installed: Installed, lab: Lab) -> None:
    use_server(installed, lab, PostgreSQL)


def use_redis(installed: Installed, lab: Lab) -> None:
    use_server(installed, lab, Redis)


def use_mysqlclient(installed: Installed, lab: Lab) -> None:
    use_server(installed, lab, MariaDB, lambda url: url.replace("mysql://", "mysql+mysqldb://"))


def use_server(
    installed: Installed, lab: Lab, kind: type[Server], changed: Callable[[str], str] = lambda url: url
) -> None:
    with lab.shared(kind).database() as url:
        installed.write(changed(url))
        installed.work()


def use_django(installed: Installed, lab: Lab) -> None:
    """The sample project makes its tables, and Django's test runner runs its tests, which run a task."""
    project = installed.folder / "project"
    shutil.copytree(ROOT / "examples/django", project, ignore=shutil.ignore_patterns("*.sqlite3*", "psched.*"))
    for command in (["check"], ["migrate"], ["psched", "doctor"], ["test"]):
        installed.run("python", "project/manage.py", *command)


def use_flask(installed: Installed, lab: Lab) -> None:
    """The sample application submits a task, and the worker `flask psched run` runs it."""
    shutil.copy(ROOT / "examples/flask_app.py", installed.folder)
    variables = {"FLASK_APP": "flask_app", "DATABASE_URL": f"sqlite:///{installed.folder}/jobs.db"}
    installed.run("flask", "psched", "init", **variables)
    posting = "import flask_app; print(flask_app.app.test_client().post('/mails/alice').get_json()['key'])"
    assert installed.run("python", "-c", posting, **variables)
    with installed.running("flask", "psched", "run", **variables):
        installed.wait_for(lambda: "mail to alice: hello" in (installed.folder / "output").read_text())


def use_sentry(installed: Installed, lab: Lab) -> None:
    """A message that a task sends reaches the Sentry server."""
    with Receiver() as receiver:
        dsn = receiver.url.replace("http://", "http://public@") + "/1"
        head = "import sentry_sdk\nfrom psched.contrib.sentry import PschedIntegration\n"
        head += f"sentry_sdk.init(dsn={dsn!r}, integrations=[PschedIntegration()])"
        installed.write(head=head, body="sentry_sdk.capture_message('from a task')")
        installed.work()
        receiver.wait_for(1)


def use_otel(installed: Installed, lab: Lab) -> None:
    """Spans are sent to the collector."""
    with Receiver() as receiver:
        installed.write(telemetry="otel")
        installed.work(OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url)
        receiver.wait_for(1)
        assert {got.path for got in receiver.got} == {"/v1/traces"}


def use_prometheus(installed: Installed, lab: Lab) -> None:
    installed.write()
    installed.work()
    installed.psched("exporter", "--textfile", "metrics.prom", "--once")
    assert 'psched_database_up{section="queue"} 1.0' in (installed.folder / "metrics.prom").read_text()


def use_web(installed: Installed, lab: Lab) -> None:
    installed.write()
    installed.work()
    url = f"http://127.0.0.1:{free_port()}/"

    def page() -> str:
        try:
            with urllib.request.urlopen(url, timeout=10) as found:
                return str(found.read(), "utf-8")
        except OSError:
            return ""

    with installed.running("psched", "-c", "psched.yml", "web", "--listen", url.removeprefix("http://").rstrip("/")):
        installed.wait_for(lambda: "<html" in page())


def use_ics(installed: Installed, lab: Lab) -> None:
    installed.write()
    installed.psched("init")
    (installed.folder / "holidays.ics").write_text(_CALENDAR.replace("\n", "\r\n"))
    assert "-01-01" in installed.psched("--json", "import", "calendar", "holidays.ics", "--name", "holidays")


_USES: Mapping[str, Callable[[Installed, Lab], None]] = {
    "none": use_none,
    "postgresql": use_postgresql,
    "postgresql-system": use_postgresql,
    "redis": use_redis,
    "django": use_django,
    "flask": use_flask,
    "sentry": use_sentry,
    "otel": use_otel,
    "prometheus": use_prometheus,
    "web": use_web,
    "ics": use_ics,
    "mysqlclient": use_mysqlclient,
}


def main(wheel: str, *extras: str) -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert _USES.keys() == {"none", *project["optional-dependencies"]}, (
        "a new extra needs a use in tests/wheel/extras.py"
    )
    if unknown := [extra for extra in extras if extra not in _USES]:
        raise SystemExit(f"test-wheel: no extra {unknown[0]}; expected one of {', '.join(_USES)}")
    with tempfile.TemporaryDirectory(prefix="psched-wheel.") as name, Lab() as lab:
        for extra in extras or _USES:
            folder = Path(name) / extra
            folder.mkdir()
            installed = Installed(folder, Path(wheel).absolute(), "" if extra == "none" else extra)
            _USES[extra](installed, lab)
            print(f"test-wheel: {extra}: ok", flush=True)
            shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

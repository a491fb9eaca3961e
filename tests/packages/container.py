"""`scripts/test-container`: the image, its probes, and tasks whose containers or processes end."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from faultlab.ports import free_port
from faultlab.postgresql import PostgreSQL
from tests.daemon.harness import wait_for
from tests.programs import ROOT

_FOLDER = ROOT / "contrib/container"
_IMAGE = "localhost/psched-test"
_PID_FILE = "/tmp/pschedd.pid"
_RUN_OPTIONS = (
    (),
    ("--cgroups=disabled",),
    ("--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"),
    ("--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024", "--cgroups=disabled"),
)
"""Options of `podman run`, tried in this order. A host that is itself a container may refuse the first ones."""
_AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
_RUNTIMES = ("crun", "runc")
_APPLICATION = '''\
"""Handlers that write what they do into their log."""

import os
import subprocess
import time

import psched

app = psched.App()


def tell(task, event):
    print("trace", task.key, event, task.attempts, flush=True)


@app.task("sleep")
def sleep(task):
    tell(task, "began")
    time.sleep(task.data["seconds"])
    tell(task, "ended")


@app.task("orphan")
def orphan(task):
    subprocess.run(["sh", "-c", "sleep 1 & exit"], check=True)
    tell(task, "ended")
'''


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/test-container", description=__doc__)
    parser.add_argument("--base", help="an image with Python 3.11 or newer (default: Debian 12, by debootstrap)")
    chosen = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="psched-container.")))
        podman = Podman()
        base = chosen.base or imported_base(podman)
        podman.find_options(base)
        build(podman, base, folder)
        server = stack.enter_context(PostgreSQL())
        for url in (stack.enter_context(server.database()), "sqlite:////var/lib/psched/psched.db"):
            with Site(podman, url, folder) as site:
                for part in (try_image, try_probes, try_stop, try_short_stop, try_killed_child, try_killed_master):
                    part(site)
                    print(
                        f"test-container: {url.partition(':')[0]}: {part.__name__.removeprefix('try_')}: ok", flush=True
                    )
    return 0


class Podman:
    """Runs podman with the options that this host needs."""

    def __init__(self) -> None:
        self.run_options: tuple[str, ...] = ()
        self.runtime: tuple[str, ...] = ()

    def __call__(self, *words: object, check: bool = True, also_errors: bool = False) -> str:
        """Run podman and return its output. With `check`, raise AssertionError with the output if podman fails."""
        argv = ["podman", *self.runtime, *(str(word) for word in words)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr if also_errors else done.stdout

    def find_options(self, image: str) -> None:
        """Find the options with which podman can run a container on this host."""
        refused: list[str] = []
        for runtime in _RUNTIMES:
            if shutil.which(runtime) is None:
                refused.append(f"{runtime} is not installed")
                continue
            for options in _RUN_OPTIONS:
                self.runtime, self.run_options = ("--runtime", runtime), ("--network=host", *options)
                told = self("run", "--rm", *self.run_options, image, "echo", "it runs", check=False, also_errors=True)
                if told.endswith("it runs\n"):
                    print(f"test-container: podman {' '.join([*self.runtime, 'run', *self.run_options])}", flush=True)
                    return
                refused.append(f"{' '.join([runtime, *options])}: {told.strip()}")
        raise SystemExit("\n  ".join(["test-container: podman cannot run a container here:", *refused]))


def imported_base(podman: Podman) -> str:
    """Return the name of a Debian image that debootstrap has made."""
    archive = ROOT / "build/debian-root.tar"
    subprocess.run([ROOT / "scripts/debian-root", archive], check=True)
    name = f"localhost/psched-test-base:{int(archive.stat().st_mtime)}"
    if not podman("images", "--quiet", name):
        podman("import", archive, name)
    return name


def build(podman: Podman, base: str, folder: Path) -> None:
    """Build the wheel and the image from the files of this checkout."""
    context = folder / "context"
    (context / "contrib").mkdir(parents=True)
    wheel = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", context / "dist"]
    subprocess.run(wheel, cwd=ROOT, check=True, capture_output=True)
    (context / "contrib/requirements.txt").write_bytes((ROOT / "contrib/requirements.txt").read_bytes())
    options = ["--format=docker", "--isolation=chroot", "--network=host", f"--build-arg=BASE={base}"]
    containerfile = ["--file", _FOLDER / "Containerfile", "--ignorefile", _FOLDER / "Containerfile.dockerignore"]
    if _AUTHORITIES.exists():  # where a proxy with a certificate of its own stands before the package registry
        (folder / "pip.conf").write_text("[global]\ncert = /etc/ssl/host.crt\n")
        options += [f"--volume={folder}/pip.conf:/etc/pip.conf:ro", f"--volume={_AUTHORITIES}:/etc/ssl/host.crt:ro"]
    podman("build", *options, *containerfile, "--tag", _IMAGE, context)
    size = int(podman("image", "inspect", "--format", "{{.Size}}", _IMAGE)) - int(
        podman("image", "inspect", "--format", "{{.Size}}", base)
    )
    print(f"test-container: the image has {size / 2**20:.0f} MiB beside its base", flush=True)


class Site:
    """Containers that use one database, with the configuration of compose.yaml.

    All are removed at the end of the context.
    """

    def __init__(self, podman: Podman, url: str, folder: Path) -> None:
        self.podman = podman
        self._url = url
        self._names: list[str] = []
        self._volume = f"psched-test-{time.time_ns()}"
        self._jobs = folder / "jobs.py"
        self._config = folder / "psched.yml"

    def __enter__(self) -> Site:
        self._jobs.write_text(_APPLICATION)
        config = (_FOLDER / "psched.yml").read_text()
        self._config.write_text(
            f"{config}  alive_time: 15\n  child_fork_frequency_limit: 0.1\n  log_format: text\n".replace(
                "  log_format: json\n", "", 1
            )
        )
        for path in (self._jobs, self._config):
            path.chmod(0o644)
        self.podman("volume", "create", self._volume)
        self.psched("init")
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            self.print_logs()
        self.remove_containers()
        self.podman("volume", "rm", "--force", self._volume, check=False)

    def print_logs(self) -> None:
        for name in self._names:
            print(f"---- {name}\n{self.log(name)}", file=sys.stderr)

    def remove_containers(self) -> None:
        while self._names:
            self.podman("rm", "--force", "--time=0", self._names.pop(), check=False)

    def start(self, *command: str, options: Sequence[str] = ()) -> str:
        """Start a container in the background and return its name."""
        name = f"psched-test-{time.time_ns()}"
        self._names.append(name)
        temporary = [] if any(option.endswith(":/tmp") for option in options) else ["--tmpfs=/tmp"]
        self.podman("run", "--detach", f"--name={name}", *self._options(), *temporary, *options, _IMAGE, *command)
        return name

    def daemon(self, *options: str) -> str:
        """Start a daemon and wait until its workers are up. Return the container's name."""
        name = self.start(options=options)
        wait_for(lambda: self.status(name).get("ready"), lambda: self.log(name))
        return name

    def psched(self, *words: str) -> str:
        """Run a psched command in a new container. Return its output."""
        return self.podman("run", "--rm", *self._options(), _IMAGE, "psched", *words)

    def submit(self, key: str, type_: str, **data: Any) -> None:
        self.psched("queue", "submit", key, type_, json.dumps(data))

    def task(self, key: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.psched("--json", "queue", "show", key))
        return found

    def inside(self, name: str, *command: str, check: bool = True) -> str:
        return self.podman("exec", name, *command, check=check)

    def status(self, name: str) -> dict[str, Any]:
        told = self.inside(name, "pschedd", "status", "--json", "--pid-file", _PID_FILE, check=False)
        found: dict[str, Any] = json.loads(told) if told.startswith("{") else {}
        return found

    def busy(self, name: str) -> list[int]:
        """Return the pids of the children that ran tasks at their last heartbeats."""
        return [child["pid"] for child in self.status(name).get("children", ()) if child["running"]]

    def log(self, name: str) -> str:
        return self.podman("logs", name, check=False, also_errors=True)

    def traces(self, name: str) -> list[str]:
        """Return the traces that handlers have printed in a container, such as `key began 1`."""
        return [line.partition("trace ")[2] for line in self.log(name).splitlines() if line.startswith("trace ")]

    def wait_for_trace(self, name: str, trace: str, within: float = 60) -> None:
        wait_for(lambda: trace in self.traces(name), lambda: self.log(name), within)

    def stop(self, name: str, seconds: int) -> int:
        """Stop a container by `podman stop`, which kills it after `seconds`. Return the container's exit code."""
        self.podman("stop", f"--time={seconds}", name)
        return int(self.podman("inspect", "--format", "{{.State.ExitCode}}", name))

    def _options(self) -> list[object]:
        return [
            *self.podman.run_options,
            "--read-only",
            "--read-only-tmpfs=false",
            "--cap-drop=all",
            "--security-opt=no-new-privileges",
            f"--env=PSCHED_DATABASE_URL={self._url}",
            f"--volume={self._volume}:/var/lib/psched",
            f"--volume={self._config}:/etc/psched/psched.yml:ro",
            f"--volume={self._jobs}:/srv/jobs/jobs.py:ro",
        ]


def try_image(site: Site) -> None:
    """The master is process 1, runs as user 10001 and has no capability. The root file system is read-only."""
    name = site.daemon()
    lines = site.inside(name, "cat", "/proc/1/cmdline", "/proc/1/status").splitlines()
    assert lines[0].startswith("psched: master [production]"), lines[0]
    fields = dict(line.split(":\t", 1) for line in lines[1:] if ":\t" in line)
    assert set(fields["Uid"].split()) == {"10001"}, fields
    assert set(fields["CapEff"]) == {"0"}, fields
    writing = "for folder in / /etc /opt/psched /srv; do touch $folder/x 2>/dev/null && echo $folder; done; true"
    assert site.inside(name, "sh", "-c", writing) == ""
    assert "/opt/psched/lib" in site.inside(
        name, "/opt/psched/bin/python", "-c", "import psched; print(psched.__file__)"
    )
    assert "fail" not in site.inside(name, "psched", "doctor"), site.inside(name, "psched", "doctor")
    assert "process 1" in site.podman(
        "exec", name, "pschedd", "--pid-file", _PID_FILE, "upgrade", check=False, also_errors=True
    )
    assert site.stop(name, 10) == 0


def try_probes(site: Site) -> None:
    """HEALTHCHECK, /healthz, /readyz and the web pages report whether the daemon works."""
    with volume(site) as shared:
        name = site.daemon(*shared)
        site.podman("healthcheck", "run", name)
        port = free_port()
        command = ("psched", "exporter", "--listen", f"127.0.0.1:{port}", "--metrics-file", f"{_PID_FILE}.metrics")
        exporter = site.start(*command, options=(f"--pid=container:{name}", *shared))
        wait_for(lambda: answer(port, "/") == 200, lambda: site.log(exporter))
        assert (answer(port, "/healthz"), answer(port, "/readyz")) == (200, 200)
        [worker, *_] = [child["pid"] for child in site.status(name)["children"]]
        site.podman("kill", "--signal=STOP", name)  # else the master would kill the frozen worker at once
        site.inside(name, "sh", "-c", f"kill -STOP {worker}")
        wait_for(lambda: answer(port, "/healthz") == 503, lambda: site.log(exporter), 60)
        assert "unhealthy" in site.podman("healthcheck", "run", name, check=False, also_errors=True)
        site.podman("kill", "--signal=CONT", name)
        site.inside(name, "sh", "-c", f"kill -CONT {worker}", check=False)
        assert site.stop(name, 10) == 0
        web = site.start("psched", "web", "--listen", f"127.0.0.1:{port + 1}", options=["--env=PSCHED_WEB_AUTH=a:b"])
        wait_for(lambda: answer(port + 1, "/") == 401, lambda: site.log(web))


def try_stop(site: Site) -> None:
    """`podman stop` waits for a running task, which does not run again."""
    name = site.daemon("--env=PSCHED_STOP_TIMEOUT=60")
    site.submit("waited-for", "sleep", seconds=8)
    site.wait_for_trace(name, "waited-for began 1")
    begun = time.monotonic()
    assert site.stop(name, 60) == 0
    assert time.monotonic() - begun < 30
    assert site.traces(name) == ["waited-for began 1", "waited-for ended 1"]
    assert site.task("waited-for")["status"] == "finished"


def try_short_stop(site: Site) -> None:
    """A task that runs longer than the stop waits is released.

    Another container runs it immediately, as the same attempt.
    """
    name = site.daemon()
    site.submit("given-back", "sleep", seconds=15)
    site.wait_for_trace(name, "given-back began 1")
    assert site.stop(name, 10) == 0
    other = site.daemon()
    site.wait_for_trace(other, "given-back ended 1")
    assert site.traces(other) == ["given-back began 1", "given-back ended 1"]
    assert site.stop(other, 10) == 0


def try_killed_child(site: Site) -> None:
    """A killed worker is replaced, its task runs again, and no zombie remains."""
    name = site.daemon("--env=PSCHED_STOP_TIMEOUT=60")
    site.submit("killed", "sleep", seconds=8)
    site.wait_for_trace(name, "killed began 1")
    # `running` is from the last heartbeat, up to two seconds ago
    wait_for(lambda: len(site.busy(name)) == 1, lambda: site.log(name), 7)
    site.inside(name, "sh", "-c", f"kill -KILL {site.busy(name)[0]}")
    site.wait_for_trace(name, "killed ended 2")
    site.submit("forks", "orphan")
    site.wait_for_trace(name, "forks ended 1")
    states = "for each in /proc/[0-9]*; do grep ^State $each/status; done 2>/dev/null; true"
    wait_for(lambda: "zombie" not in site.inside(name, "sh", "-c", states), lambda: site.log(name))
    wait_for(lambda: "sleep" not in site.inside(name, "sh", "-c", "cat /proc/[0-9]*/comm"), lambda: site.log(name))
    assert site.stop(name, 60) == 0


def try_killed_master(site: Site) -> None:
    """When a container is killed, another container runs its task after the end of the lease (`alive_time`)."""
    name = site.daemon()
    site.submit("lost", "sleep", seconds=3)
    site.wait_for_trace(name, "lost began 1")
    site.podman("kill", "--signal=KILL", name)
    other = site.daemon("--env=PSCHED_STOP_TIMEOUT=60")
    wait_for(
        lambda: [trace for trace in site.traces(other) if trace.startswith("lost ended")], lambda: site.log(other), 60
    )
    assert site.stop(other, 60) == 0


@contextmanager
def volume(site: Site) -> Iterator[tuple[str, ...]]:
    """Yield the options by which two containers share one /tmp."""
    name = f"psched-test-tmp-{time.time_ns()}"
    site.podman("volume", "create", "--opt=type=tmpfs", "--opt=device=tmpfs", "--opt=o=mode=1777", name)
    try:
        yield (f"--volume={name}:/tmp",)
    except BaseException:
        site.print_logs()
        raise
    finally:
        site.remove_containers()
        site.podman("volume", "rm", "--force", name, check=False)


def answer(port: int, path: str) -> int:
    """Return the status of an HTTP answer; 0 if no answer comes."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as found:
            return int(found.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


_Part = Callable[[Site], None]

if __name__ == "__main__":
    sys.exit(main())

"""A temporary machine that runs a real systemd: systemd-nspawn with a copy-on-write view of this host's root.

Its mounts are in a mount namespace, and its processes in a pid namespace. So both vanish with the one process that
holds these namespaces, however it ends, even if the tests are killed. Only the control groups must be removed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import psutil

from faultlab.prerequisites import find, not_run
from tests.daemon.harness import wait_for
from tests.programs import programs

_TOOLS = ("systemd-nspawn", "dbus-daemon", "nsenter", "setpriv", "unshare", "runuser")
_TARGET = "[Unit]\nDescription=Laboratory\n"
_MOUNT = """
mkdir -p cow files
mount -t tmpfs tmpfs cow
mkdir cow/upper cow/work cow/root
cp -a files/. cow/upper
mount -t overlay overlay -o lowerdir="$lower",upperdir=cow/upper,workdir=cow/work cow/root
"""
_BOOT = f"""
set -eu
cd "$1"; name=$2; lower=$3; shift 3
for group in $(awk '$3 ~ /^cgroup2?$/ {{ print $2 }}' /proc/mounts); do
    case $group in *cpuset*) continue ;; esac  # wants cpus and nodes before any process
    mkdir -p "$group/$name" && echo $$ > "$group/$name/cgroup.procs"
done
{_MOUNT}
exec systemd-nspawn --quiet --register=no --keep-unit --private-users=identity --machine="$name" \
    -D cow/root "$@" --boot systemd.unit=laboratory.target
"""


def require_machine() -> None:
    """Report the test as NOT RUN if no machine can be started here."""
    if sys.platform != "linux":
        not_run("systemd is on Linux only")
    if os.geteuid() != 0:
        not_run("systemd-nspawn needs root, run the tests as root")
    for tool in _TOOLS:
        find(tool)
    if obstacle := _obstacle():
        not_run(f"{obstacle}; run the tests in a virtual machine or a privileged container")


@lru_cache
def _obstacle() -> str:
    """Return what prevents a machine here; an empty string if nothing does.

    A container's rights are found only by using them.
    """
    with tempfile.TemporaryDirectory() as folder:
        argv = ["unshare", "--mount", "--pid", "--fork", "sh", "-euc", f"cd {folder}; lower=/\n{_MOUNT}"]
        return subprocess.run(argv, capture_output=True, text=True, check=False).stderr.strip()


class Machine:
    """A booted machine. `root`: its file system, as this host sees it while the machine runs."""

    def __init__(self, init: psutil.Process, console: Path) -> None:
        self._init = init
        self._console = console
        self.root = Path(f"/proc/{init.pid}/root")

    def run(self, *command: str, check: bool = True, timeout: float = 60) -> str:
        """Run a command as root on the machine.

        Return its output, or raise AssertionError with the output if it fails.
        """
        argv = ["nsenter", "--target", str(self._init.pid), "--all", "--", *command]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False)
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def is_running(self) -> bool:
        """Return whether the machine is still switched on."""
        return self._init.is_running() and self._init.status() != psutil.STATUS_ZOMBIE

    def console(self) -> str:
        """Return the text that was written to the machine's console."""
        return self._console.read_text(errors="replace")

    def show(self, unit: str, *names: str) -> dict[str, str]:
        """Return properties of a unit as systemd knows them."""
        lines = self.run("systemctl", "show", unit, *(f"--property={name}" for name in names)).splitlines()
        return dict(line.split("=", 1) for line in lines)

    def main(self, unit: str) -> psutil.Process:
        """Return the unit's main process as this host sees it. Raises AssertionError if there is none."""
        inside = self.show(unit, "MainPID")["MainPID"]
        for process in self.processes(unit):
            if re.search(rf"^NSpid:.*\s{inside}$", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE):
                return process
        raise AssertionError(f"{unit} has no main process: {self.run('systemctl', 'status', unit, check=False)}")

    def processes(self, unit: str) -> list[psutil.Process]:
        """Return all processes in the unit's control group, as this host sees them."""
        return [process for process in self._init.children(recursive=True) if _is_of(process, unit)]


@contextmanager
def boot(
    folder: Path, files: Mapping[str, str], binds: Mapping[Path, str], lower: Path = Path("/")
) -> Iterator[Machine]:
    """Boot a machine with these files over the root of this host (or over `lower`). Remove all at the end of the block.

    `files`: text by path; files in a folder `bin` are executable. `binds`: folders of the host, and the paths at which
    the machine sees them read-only.
    """
    name = f"psched-lab-{os.getpid()}"
    for path, text in {"/etc/systemd/system/laboratory.target": _TARGET, **files}.items():
        _lay(folder / "files" / path.lstrip("/"), text)
    argv = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    argv += [
        "sh",
        "-c",
        _BOOT,
        "boot",
        str(folder),
        name,
        str(lower),
        *(f"--bind-ro={host}:{inside}" for host, inside in binds.items()),
    ]
    with (folder / "console").open("wb") as console:
        launcher = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=console, stderr=console)
    try:
        yield _booted(launcher, folder / "console")
    finally:
        launcher.kill()
        launcher.wait()
        _remove_groups(name)


def python_files(package: Path) -> tuple[dict[str, str], dict[Path, str]]:
    """Return files and binds by which /opt/psched is a virtualenv with `package` and this interpreter's libraries.

    They are needed because the sandbox of a service hides /home, /root and /tmp, which often contain interpreters and
    checkouts.
    """
    base, version = Path(sys.base_prefix), f"python{sys.version_info.major}.{sys.version_info.minor}"
    inside = "/usr" if base == Path("/usr") else "/opt/python"
    files = {"/opt/psched/pyvenv.cfg": f"home = {inside}/bin\ninclude-system-site-packages = false\n"}
    for program, text in programs("/opt/psched/bin/python", "/opt/psched/src").items():
        files[f"/opt/psched/bin/{program}"] = text
    files["/opt/psched/bin/python"] = f"-> {inside}/bin/{version}"
    files["/etc/ld.so.conf.d/laboratory.conf"] = f"{inside}/lib\n"
    binds = {
        Path(sysconfig.get_path("purelib")): f"/opt/psched/lib/{version}/site-packages",
        package: "/opt/psched/src/psched",
    }
    return files, binds if inside == "/usr" else {**binds, base: inside}


def _is_of(process: psutil.Process, unit: str) -> bool:
    try:
        return (
            re.search(rf"/{unit}\.service$", Path(f"/proc/{process.pid}/cgroup").read_text(), re.MULTILINE) is not None
        )
    except (FileNotFoundError, ProcessLookupError):
        return False  # it has just ended


def _lay(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if text.startswith("-> "):
        path.symlink_to(text[3:])
        return
    path.write_text(text)
    path.chmod(0o755 if path.parent.name == "bin" else 0o644)


def _booted(launcher: subprocess.Popen[bytes], console: Path) -> Machine:
    def ready() -> Machine | None:
        assert launcher.poll() is None, f"the machine did not boot: {console.read_text(errors='replace')}"
        for process in psutil.Process(launcher.pid).children(recursive=True):
            if _is_init(process):
                machine = Machine(process, console)
                state = machine.run("systemctl", "is-system-running", check=False).strip()
                return machine if state in {"running", "degraded"} else None
        return None

    return wait_for(ready, lambda: console.read_text(errors="replace"))


def _is_init(process: psutil.Process) -> bool:
    try:
        return process.name() == "systemd" and "systemd.unit=laboratory.target" in process.cmdline()
    except psutil.Error:
        return False  # a helper of the boot's that has just ended


def _remove_groups(name: str) -> None:
    mounts = re.findall(r"^\S+ (\S+) cgroup2? ", Path("/proc/mounts").read_text(), re.MULTILINE)
    for top in (Path(mount, name) for mount in mounts):
        for folder, _, _ in os.walk(top, topdown=False):
            _remove(Path(folder))


def _remove(group: Path) -> None:
    """Remove a control group. Wait until the kernel has removed its last process."""

    def removed() -> bool:
        try:
            group.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    wait_for(removed, lambda: f"{group} is still in use")

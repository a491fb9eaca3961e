"""`scripts/first-task`: measures how long pip install and the commands of README.md take, up to the first task."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from tests.docs.snippets import snippets

ROOT = Path(__file__).parents[2]
_LIMIT = 20.0
_FIRST_RUN = "report for Paris"


def main() -> int:
    """Return the exit code: 1 if the commands took more than 20 s in total."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="psched-first-task.")).absolute()
    wheels, environment, work = folder / "wheels", folder / "venv", folder / "work"
    work.mkdir(parents=True)
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", wheels]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    venv.create(environment, with_pip=True)
    [wheel] = wheels.glob("*.whl")
    environ = {**os.environ, "PATH": f"{environment / 'bin'}:{os.environ['PATH']}", "HOME": str(folder)}
    environ.pop("PYTHONPATH", None)

    spent = _timed(f"pip install {wheel.name}", f"pip install --quiet {wheel}", work, environ)
    for block in snippets(ROOT / "README.md"):
        if block.action == "file":
            (work / block.argument).parent.mkdir(exist_ok=True)
            (work / block.argument).write_text(block.text)
        for line in block.text.splitlines() if block.action == "run" else []:
            spent += _timed(line, line, work, environ)
            if line == "pschedd start":
                until = f"until grep -q '{_FIRST_RUN}' psched.log; do sleep 0.05; done"
                spent += _timed(f"(until the log has: {_FIRST_RUN})", until, work, environ)
                print(f"{spent:6.2f} s until the first task has run; the limit is {_LIMIT:g} s")
                subprocess.run(["pschedd", "stop"], cwd=work, env=environ, check=True)
                return int(spent > _LIMIT)
    raise SystemExit("README.md no longer has the command pschedd start")


def _timed(name: str, command: str, folder: Path, environ: dict[str, str]) -> float:
    begin, processor = time.monotonic(), _processor_time()
    subprocess.run(["bash", "-c", command], cwd=folder, env=environ, check=True, stdout=subprocess.DEVNULL, timeout=300)
    seconds = time.monotonic() - begin
    print(f"{seconds:6.2f} s, {_processor_time() - processor:5.2f} s of a processor  {name}", flush=True)
    return seconds


def _processor_time() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())

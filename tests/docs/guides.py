"""`scripts/test-guides`: runs the tutorials, and docs/moving.md with other systems from PyPI, in new virtualenvs.

psched is installed from a fresh clone of HEAD.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from faultlab.laboratory import Lab
from faultlab.postgresql import PostgreSQL
from faultlab.redis import Redis
from tests.docs.snippets import snippets

ROOT = Path(__file__).parents[2]
_SYSTEMS = {
    "celery": ["celery"],
    "huey": ["huey"],
    "rq": ["rq"],
    "procrastinate": ["procrastinate"],
    "schedule-mq": [],
}
"""The packages to install for each system in docs/moving.md."""
_EXTRAS = {"django-site": "[django]", "procrastinate": "[postgresql]", "schedule-mq": "[redis]"}
"""psched's extra to install for a tutorial or a system. Those that are not listed need none."""
_TUTORIALS = {path.stem: path for path in sorted((ROOT / "docs" / "tutorials").glob("*.md"))}

_IN_DJANGO = "norun=tests/django/test_documentation.py runs it"


def main(words: Sequence[str]) -> int:
    """Print how long each guide took, in seconds. Return the exit code: 1 if a guide failed.

    `words`: run only guides whose names contain one of these words; an empty list means all.
    """
    folder = Path(tempfile.mkdtemp(prefix="psched-guides."))
    clone = folder / "clone"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    failed = False
    for name in [*_TUTORIALS, *_SYSTEMS]:
        if words and not any(word in name for word in words):
            continue
        begun = time.monotonic()
        environ = _installed(folder / name, clone, _EXTRAS.get(name, ""), _SYSTEMS.get(name, []))
        installed = time.monotonic()
        problem = (
            _tutorial(name, folder / name, environ) if name in _TUTORIALS else _system(name, folder / name, environ)
        )
        took = f"installed in {installed - begun:.1f} s, done in {time.monotonic() - installed:.1f} s"
        print(f"{name}: {took}: {'ok' if problem is None else f'FAILED{chr(10)}{problem}'}", flush=True)
        failed |= problem is not None
    if failed:
        print(f"test-guides: the programs are in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


def _installed(folder: Path, clone: Path, extra: str, packages: Sequence[str]) -> dict[str, str]:
    """Make a virtualenv with psched and these packages. Return the environment variables for its programs."""
    venv.create(folder / "venv", with_pip=True)
    subprocess.run([folder / "venv/bin/pip", "install", "-q", f"{clone}{extra}", *packages], check=True)
    (folder / "work").mkdir()
    path = f"{folder / 'venv/bin'}:{os.environ['PATH']}"
    return {**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, "PATH": path, "HOME": str(folder)}


def _tutorial(name: str, folder: Path, environ: dict[str, str]) -> str | None:
    return _blocks(_TUTORIALS[name], {"run", _IN_DJANGO}, {"file"}, folder / "work", environ)


def _system(name: str, folder: Path, environ: dict[str, str]) -> str | None:
    document = ROOT / "docs" / "moving.md"
    with Lab() as lab, ExitStack() as databases:
        if name in ("rq", "schedule-mq"):
            environ["REDIS_URL"] = lab.shared(Redis).url("0").replace("://:", "://default:")  # redis-cli needs a user
        if name == "procrastinate":
            environ["DATABASE_URL"] = databases.enter_context(lab.shared(PostgreSQL).database())
        problem = _blocks(document, {"run"}, {"file"}, folder / "work", environ)
        return problem or _blocks(document, {f"guide={name}"}, {"guide"}, folder / "work", environ)


def _blocks(document: Path, run: set[str], write: set[str], work: Path, environ: dict[str, str]) -> str | None:
    """Write the files of a document and run its commands. Return the output of the first command that failed, or None.

    `run`, `write`: the actions (see `snippets`) of the blocks to run and to write.
    """
    for block in snippets(document):
        if block.action in write and block.language != "sh":
            (work / block.argument).parent.mkdir(parents=True, exist_ok=True)
            (work / block.argument).write_text(block.text)
        if block.language == "sh" and {block.action, f"{block.action}={block.argument}"} & run:
            command = ["bash", "-euc", block.text]
            done = subprocess.run(
                command, cwd=work, env=environ, capture_output=True, text=True, timeout=120, check=False
            )
            if done.returncode:
                return f"{block}:\n{block.text}\n{done.stdout}{done.stderr}"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

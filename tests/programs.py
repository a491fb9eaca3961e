"""psched and pschedd as programs, even if this checkout is not installed."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

_PROGRAM = """\
#!{interpreter}
import sys
sys.path.insert(0, {source!r})
from psched.cli.entry_point import {name}
sys.exit({name}())
"""
_FORKED = """\
#!{interpreter} -IS
import sys
sys.path.insert(0, {source!r})
from faultlab.forked_program import main
sys.exit(main([*{argv!r}, *sys.argv[1:]]))
"""
_NAMES = ("psched", "pschedd")
_OTHERS = ("django-admin", "flask", "pytest")
"""Programs of other projects that import psched."""


def programs(interpreter: str = sys.executable, source: str = str(ROOT)) -> dict[str, str]:
    """Return the text of each program by its name. `interpreter` runs it, from the package in the folder `source`."""
    return {name: _PROGRAM.format(interpreter=interpreter, source=source, name=name) for name in _NAMES}


def install_programs(folder: Path) -> None:
    """Write the programs into a new folder."""
    folder.mkdir(parents=True)
    for name, text in programs().items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


def install_forked_programs(folder: Path) -> None:
    """Write programs into a new folder that run in a fork of the fork server, among them a `python` that runs a file.

    The folder `real` in it contains programs that do not fork.
    """
    install_programs(folder / "real")
    installed = Path(sys.executable).parent
    argv = {name: [str(folder / "real" / name)] for name in _NAMES}
    argv |= {name: [str(installed / name)] for name in _OTHERS if (installed / name).exists()}
    for name, words in {**argv, "python": []}.items():
        text = _FORKED.format(interpreter=sys.executable, source=str(ROOT), argv=words)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)

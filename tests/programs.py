"""psched and pschedd as programs, whether or not this checkout is installed. In the test process."""

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
"""Programs of users that import psched."""


def programs(interpreter: str = sys.executable, source: str = str(ROOT)) -> dict[str, str]:
    """Return the text of each program: run by `interpreter`, from the package in the folder `source`."""
    return {name: _PROGRAM.format(interpreter=interpreter, source=source, name=name) for name in _NAMES}


def install_programs(folder: Path) -> None:
    """Write the programs into a new folder."""
    folder.mkdir(parents=True)
    for name, text in programs().items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


def install_forked_programs(folder: Path) -> None:
    """Write programs into a new folder that let the fork server be them, and `python` too, when it runs a file."""
    install_programs(folder / "real")
    installed = Path(sys.executable).parent
    argv = {name: [str(folder / "real" / name)] for name in _NAMES}
    argv |= {name: [str(installed / name)] for name in _OTHERS if (installed / name).exists()}
    for name, words in {**argv, "python": []}.items():
        text = _FORKED.format(interpreter=sys.executable, source=str(ROOT), argv=words)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)

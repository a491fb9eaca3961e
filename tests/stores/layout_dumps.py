"""The tables of each layout as text. A released version's layout never changes."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from psched.backends.common import layout_version
from tests.programs import ROOT

_FOLDER = Path(__file__).with_name("layouts")


def check_dump(name: str, text: str) -> None:
    """Check that a stored dump equals `text`, the dump of psched's present tables.

    With PSCHED_WRITE_LAYOUT, write the stored dump instead.
    """
    path = _FOLDER / str(layout_version.LAYOUT) / name
    if os.environ.get("PSCHED_WRITE_LAYOUT"):
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    assert path.exists(), f"{path} is missing: run scripts/table-layout"
    if path.read_text() == text:
        return
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    if int(version.partition(".")[0]) == 0:
        remedy = (
            "Nothing is released with it before 1.0: on Redis raise the state in upgrades.py and common.lua, run "
            "scripts/table-layout, and say in CHANGELOG.md that tables are to be recreated."
        )
    else:
        remedy = (
            "If this layout is released, it never changes: make the next one (CONTRIBUTING.md, 'A change of the "
            "tables'). If not, run scripts/table-layout."
        )
    raise AssertionError(
        f"the tables of layout {layout_version.LAYOUT} are not those in {path.relative_to(ROOT)}. {remedy}"
    )

"""The public API does not change unnoticed: tests/docs/public_api.txt lists it, as griffe reads it from the source."""

from __future__ import annotations

import runpy
from pathlib import Path

from tests.programs import ROOT

_SNAPSHOT = Path(__file__).with_name("public_api.txt")


def test_the_public_api_is_the_announced_one() -> None:
    lines: list[str] = runpy.run_path(str(ROOT / "scripts" / "public-api"))["public_api"]()
    before, now = set(_SNAPSHOT.read_text().splitlines()), set(lines)
    gone, new = sorted(before - now), sorted(now - before)
    broken = "\n  ".join(["These lines went away or changed, which breaks programs of users:", *gone])
    remedy = (
        "Keep the old way with a DeprecationWarning (CONTRIBUTING.md, Deprecation). If the break is meant, announce it "
        "in CHANGELOG.md (under Deprecated, Changed or Removed), and run scripts/format."
    )
    assert not gone, f"{broken}\n{remedy}"
    assert not new, "\n  ".join(["New in the public API; name it in CHANGELOG.md and run scripts/format:", *new])

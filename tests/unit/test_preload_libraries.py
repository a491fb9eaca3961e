"""What a master loads before its first fork, and what it keeps of this."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

from psched import fork_safety as forks
from psched.config import from_mapping
from psched.supervisor.preload_libraries import preload


def test_no_store_that_was_opened_to_preload_it_is_left_for_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(sys, "path_importer_cache", {})
    before = set(forks._fork_aware.copy())
    preload(from_mapping({"type": "rdb", "url": f"sqlite:///{tmp_path}/none.db", "schedules": {}, "queue": {}}))
    assert set(forks._fork_aware.copy()) <= before

"""The statements that settle runs: each is executed once for one run, or once for some hundreds of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from psched.backends import open_stores
from psched.backends.sql.compiled_statements import CompiledText
from psched.store import StoreSettings


def test_a_statement_that_settles_runs_is_sent_no_value_that_is_always_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs.db").touch()
    prepared: list[CompiledText] = []
    of = CompiledText.of

    def noted(*arguments: Any) -> CompiledText:
        prepared.append(of(*arguments))
        return prepared[-1]

    monkeypatch.setattr(CompiledText, "of", noted)
    names = {"schedules": "constant_schedules", "queue": "constant_queue"}  # a text is prepared once for each table
    stores = open_stores("rdb", StoreSettings(f"sqlite:///{tmp_path / 'runs.db'}", "holder", **names))
    for store in (stores.schedules, stores.queue):
        assert store is not None
        store.prepare()
        store.close()
    settling = [statement for statement in prepared if "endings=" in statement.text]
    assert len(settling) == 4  # of a schedule and of a task, of one and of many
    assert [dict(statement.constants) for statement in settling] == [{}] * 4

"""A late finish would reveal a missing fence: seeds decide in which order the statements run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from psched.backends.redis import script_composer
from psched.backends.redis.script_composer import Script
from tests.stores.bench import Bench
from tests.stores.interleaving import PromiseBrokenError, Simulation

pytestmark = pytest.mark.slow

WORKERS = 3
SEEDS = 20
"""The number of seeds: enough to find each removed guard several times (see below)."""
MOST_SEEDS = 200
"""The maximum number of seeds where locks and a busy machine also affect the order, so that the first ones may miss a
guard.
"""
FENCE = (
    r"(?:coalesce\((?:\w+\.)?holder, ''\)|\b(?:\w+\.)?[`\"]?(?:fence|claim|timeout)[`\"]?)"
    r" = ((?:\?|%\(\w+\)s|%s)(?:::\w+)?)(?! *,)"
)
"""Patterns of an UPDATE's comparisons of the fence, of the acquire's number and of the holder."""


def test_no_order_of_statements_breaks_a_promise(bench: Bench) -> None:
    refusals = 0
    stores = [bench.open() for _ in range(WORKERS)]
    for seed in range(SEEDS):
        simulation = Simulation(bench, stores, seed)
        simulation.run()
        refusals += simulation.refusals
        stores[0].delete(f"seed{seed}")
    assert refusals > 0, "nobody was ever late: these seeds prove nothing"


@pytest.mark.in_suite_on("rdb-sqlite", "redis-redis")
def test_a_removed_fence_is_found(bench: Bench) -> None:
    with unfenced_scripts(), rewritten(FENCE):
        assert find_violation(bench)


@pytest.mark.in_suite_on("rdb_compat-sqlite", "rdb-mariadb")
def test_a_removed_row_count_check_is_found(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sa.CursorResult, "rowcount", property(lambda result: 1))
    monkeypatch.setattr("psched.backends.sql.mysql._THEN", "; SET done = 1; IF done = 1 THEN ")
    if bench.database == "mysql" or bench.compat:  # elsewhere one statement does it, and counts as it goes
        assert find_violation(bench)


def find_violation(bench: Bench) -> bool:
    stores = [bench.open() for _ in range(WORKERS)]
    for seed in range(MOST_SEEDS):
        try:
            Simulation(bench, stores, seed).run()
        except (PromiseBrokenError, AssertionError, sa.exc.IntegrityError):  # the ledger refuses a second end, too
            return True
        finally:
            stores[0].delete(f"seed{seed}")
    return False


@contextmanager
def unfenced_scripts() -> Iterator[None]:
    """Make the comparisons of leases in Redis scripts always true."""
    compare, of_holders = "found[1] .. ':' .. (found[4] or '') ~= numbers", "found[5] ~= holder or"
    compose = script_composer.compose

    def unfenced(kind: str, verb: str) -> Script:
        script = compose(kind, verb)
        assert compare in script.text
        assert of_holders in script.text
        return replace(script, text=script.text.replace(compare, "false").replace(of_holders, ""))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script_composer, "compose", unfenced)
        yield


@contextmanager
def rewritten(pattern: str) -> Iterator[None]:
    """Make a comparison in the WHERE of every UPDATE always true."""

    def rewrite(conn: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> tuple[str, Any]:
        if not statement.lstrip().startswith("UPDATE"):
            return statement, parameters
        head, where, tail = statement.partition("WHERE")
        return head + where + re.sub(pattern, r"\1 IS NOT NULL", tail), parameters

    sa.event.listen(sa.Engine, "before_cursor_execute", rewrite, retval=True)
    try:
        yield
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", rewrite)

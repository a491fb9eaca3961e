"""Records on Redis what visitors of the web pages did: for each table, a list of the last actions."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from psched.store.visitor_actions import KEPT_ACTIONS, VisitorAction

_READ = 1000


class RedisVisitorActions:
    """`VisitorActions` of one table. `run`: runs a script that is safe to run twice."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run

    def record(self, user: str, action: str, key: str, detail: str | None, retention: float) -> None:
        told = json.dumps([user, action, key, detail], ensure_ascii=False)[1:-1]
        self._run("record_action", secrets.randbits(62), KEPT_ACTIONS, told)

    def last(self, limit: int, key: str | None = None) -> Sequence[VisitorAction]:
        texts = self._run("last_actions", limit if key is None else _READ)
        found = [VisitorAction(at / 1000, *rest) for _, at, *rest in map(json.loads, texts)]
        return [each for each in found if key in (None, each.key)][:limit]

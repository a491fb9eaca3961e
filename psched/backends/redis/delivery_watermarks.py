"""Watermarks on Redis: the hash `watermarks` of a table."""

from __future__ import annotations

import contextlib
import json
import math

from psched.backends.common.rows import milliseconds
from psched.backends.redis.ledger import Run
from psched.store.delivery_watermarks import Watermark, WatermarkKind


class RedisWatermarks:
    def __init__(self, run: Run) -> None:
        self._run = run

    def raise_to(self, kind: WatermarkKind, name: str, position: float, detail: str = "") -> None:
        self._run("raise_watermark", f"{kind}:{name}", milliseconds(position), json.dumps(detail))

    def page(self, kind: WatermarkKind, after: str, limit: int) -> list[Watermark]:
        marks = []
        for field, text in self._run("watermarks", f"{kind}:", after, limit):
            name = field.decode(errors="replace").removeprefix(f"{kind}:")
            with contextlib.suppress(ValueError, TypeError, KeyError):  # skip invalid JSON
                known = json.loads(text)
                marks.append(Watermark(kind, name, known["position"] / 1000, known["detail"], known["since"] / 1000))
        return marks

    def claim(self, mark: Watermark, claimer: str, seconds: float) -> bool:
        span = math.ceil(seconds * 1000)
        return bool(self._run("claim_watermark", *_this(mark), claimer, span))

    def remove(self, mark: Watermark) -> None:
        self._run("remove_watermark", *_this(mark))


def _this(mark: Watermark) -> tuple[str, int]:
    return f"{mark.kind}:{mark.name}", milliseconds(mark.position)

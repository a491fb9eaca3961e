"""Ends the exporter on TERM and INT."""

from __future__ import annotations

import signal
import sys


def end_on_signals() -> None:
    def end(number: int, frame: object) -> None:
        sys.exit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)

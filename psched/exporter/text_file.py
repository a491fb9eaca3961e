"""Writes the metrics into a text file for the node exporter."""

from __future__ import annotations

import threading
from pathlib import Path

from prometheus_client import generate_latest

from psched.atomic_write import write_atomically
from psched.exporter.families import NodeCollector, registry_of

_MODE = 0o644


def write_text_file(collector: NodeCollector, path: Path) -> None:
    """Replace the file atomically, so that no reader sees a part of it. Raises OSError."""
    text = generate_latest(registry_of(collector)).decode()
    write_atomically(path, [text], mode=_MODE)


def write_text_files(collector: NodeCollector, path: Path, interval: float) -> None:
    """Replace the file every `interval` seconds until the process ends. Raises OSError."""
    pause = threading.Event()
    while True:
        write_text_file(collector, path)
        pause.wait(interval)

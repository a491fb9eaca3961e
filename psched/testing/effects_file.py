"""Records effects that a test can read even after the process that caused them was killed."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload


class Effects(Sequence[Any]):
    """A list of JSON values in a file. All processes of a test append to it, and the values survive these processes.

    For effects outside of databases, such as emails: let the test replace the function that sends them by `append`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.clear()

    def append(self, value: Any) -> None:
        """Append a value. Raises TypeError if the value cannot be JSON."""
        line = json.dumps(value).encode() + b"\n"
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, line)
        finally:
            os.close(file)

    def clear(self) -> None:
        """Remove all values."""
        self._path.write_bytes(b"")

    def _values(self) -> list[Any]:
        return [json.loads(line) for line in self._path.read_bytes().splitlines()]

    def __len__(self) -> int:
        return len(self._values())

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Any]: ...
    def __getitem__(self, place: int | slice) -> Any:
        return self._values()[place]

    def __eq__(self, other: object) -> bool:
        return self._values() == (other._values() if isinstance(other, Effects) else other)

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return repr(self._values())

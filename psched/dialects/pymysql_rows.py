"""PyMySQL's connections, with rows read in fewer steps and the encryption set up once. Children and clients.

PyMySQL is Python all through, and calls three functions for each value it reads: of all that a worker does to acquire a
task, that took a third of the time.
"""

from __future__ import annotations

import ssl
from typing import Any, ClassVar

from pymysql.connections import Connection, MySQLResult

_NULL = 251
"""In place of a value's length when there is none; lengths from there on take more than one byte."""
_WIDTHS = {252: 2, 253: 3, 254: 8}
"""Of such lengths, in bytes."""


class SwiftConnection(Connection):
    """A connection; those without `tls` share one context of the encryption, which takes 30 ms to make."""

    _encryption: ClassVar[ssl.SSLContext | None] = None

    def _create_ssl_ctx(self, settings: Any) -> Any:
        make = super()._create_ssl_ctx  # type: ignore[misc]
        if settings:
            return make(settings)
        if SwiftConnection._encryption is None:
            SwiftConnection._encryption = make(settings)
        return SwiftConnection._encryption

    def _read_query_result(self, unbuffered: bool = False) -> Any:
        if unbuffered:
            return super()._read_query_result(unbuffered)  # type: ignore[misc]
        self._result = None  # what was answered before is no answer to this
        answer: Any = _SwiftResult(self)
        answer.read()
        self._result = answer
        if answer.server_status is not None:
            self.server_status = answer.server_status
        return answer.affected_rows


class _SwiftResult(MySQLResult):
    """An answer whose rows are taken apart in one loop."""

    converters: list[tuple[str | None, Any]]

    def _read_row_from_packet(self, packet: Any) -> tuple[Any, ...]:
        data: bytes = packet.get_all_data()
        row: list[Any] = []
        place = 0
        for encoding, converter in self.converters:
            length = data[place]
            place += 1
            if length >= _NULL:
                if length == _NULL:
                    row.append(None)
                    continue
                width = _WIDTHS[length]
                length = int.from_bytes(data[place : place + width], "little")
                place += width
            end = place + length
            value: Any = data[place:end]
            place = end
            if encoding is not None:
                value = value.decode(encoding)
            row.append(value if converter is None else converter(value))
        return tuple(row)

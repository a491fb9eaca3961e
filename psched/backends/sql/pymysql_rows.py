"""PyMySQL's connections, with rows read in fewer steps and the encryption set up once. Children and clients.

PyMySQL is Python all through. It calls three functions for each value it reads, and takes apart what the server says of
each column, dozens of calls every time, though a statement's columns are always the same: of all that a worker does to
acquire a task, that took half of the time.
"""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

from pymysql.connections import Connection, MySQLResult
from pymysql.protocol import MysqlPacket

_NULL = 251
"""In place of a value's length when there is none; lengths from there on take more than one byte."""
_WIDTHS = {252: 2, 253: 3, 254: 8}
"""Of such lengths, in bytes."""
_MOST_SHAPES = 256
"""How many answers' columns a connection knows; a client may ask for others and others."""


class SwiftConnection(Connection):
    """A connection; those without `tls` share one context of the encryption, which takes 30 ms to make."""

    _encryption: ClassVar[ssl.SSLContext | None] = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.shapes: dict[tuple[bytes, ...], _Shape] = {}
        super().__init__(*arguments, **options)

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


class _Shape(NamedTuple):
    """What PyMySQL makes of what the server says of an answer's columns."""

    fields: list[Any]
    converters: list[tuple[str | None, Any]]
    description: tuple[Any, ...]


class _Repeated:
    """Packets that were read from a connection, for whoever would read them from it."""

    def __init__(self, connection: Any, packets: Iterable[Any]) -> None:
        self._packets = deque(packets)
        self.use_unicode = connection.use_unicode
        self.encoding = connection.encoding
        self.decoders = connection.decoders

    def _read_packet(self, kind: Any = MysqlPacket) -> Any:
        return kind(self._packets.popleft().get_all_data(), self.encoding)


class _SwiftResult(MySQLResult):
    """An answer whose columns are known if they came before, and whose rows are taken apart in one loop."""

    fields: list[Any]
    converters: list[tuple[str | None, Any]]
    description: tuple[Any, ...]

    def _get_descriptions(self) -> None:
        connection: Any = self.connection
        packets = [connection._read_packet() for _ in range(self.field_count)]
        told = tuple([packet.get_all_data() for packet in packets])
        end = connection._read_packet()
        shape = connection.shapes.get(told)
        if shape is None:
            shape = connection.shapes[told] = self._shape(connection, [*packets, end])
        self.fields, self.converters, self.description = shape

    def _shape(self, connection: Any, packets: Iterable[Any]) -> _Shape:
        if len(connection.shapes) >= _MOST_SHAPES:
            connection.shapes.clear()
        repeated: Any = _Repeated(connection, packets)
        self.connection = repeated
        super()._get_descriptions()  # type: ignore[misc]
        self.connection = connection
        return _Shape(self.fields, self.converters, self.description)

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

"""The key `events`: where the ends of runs are sent, a webhook or a Redis stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from psched.config.hooks import Hook, hook

_EXPECTED = "expected a mapping with url (a webhook) or stream (the URL of a Redis server)"
_OF_STREAM = ("stream", "name", "max_length")
_SCHEMES = ("redis://", "rediss://", "unix://")
_MOST = 100_000_000


@frozen
class EventReceiver:
    """A webhook, or a stream on a Redis server that keeps about `max_length` events."""

    webhook: Hook | None = None
    stream: str | None = field(default=None, repr=False)
    name: str = "psched:events"
    max_length: int = 100_000


def event_receiver(value: Any) -> EventReceiver | None:
    """Accept a mapping with `url`, as for hooks, or with `stream`."""
    if value is None or isinstance(value, EventReceiver):
        return value
    if not isinstance(value, Mapping) or len({"url", "stream"} & value.keys()) != 1:
        raise ValueError(_EXPECTED)
    if "url" in value:
        return EventReceiver(hook(value))
    for key in value.keys() - set(_OF_STREAM):
        raise ValueError(f"unknown key {key!r}; expected {', '.join(_OF_STREAM)}")
    stream, name = value["stream"], value.get("name", EventReceiver().name)
    most = value.get("max_length", EventReceiver().max_length)
    if not isinstance(stream, str) or not stream.startswith(_SCHEMES):
        raise ValueError("stream: write a URL like redis://:password@host:6379/0")
    if not isinstance(name, str) or not name:
        raise ValueError("name: write the key of the stream, such as psched:events")
    if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= _MOST:
        raise ValueError(f"max_length: write a whole number from 1 to {_MOST}")
    return EventReceiver(None, stream, name, most)

"""The key `events`: which events are sent to a webhook, a Redis stream or a channel of PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from attrs import evolve, field, frozen

from psched.config.alert_hooks import Hook, hook

_EXPECTED = (
    "expected a mapping with url (a webhook), stream (the URL of a Redis server) or channel (of PostgreSQL's NOTIFY)"
)
EventKind = Literal["run", "late", "failed", "recovered", "task"]
"""`run`: a schedule's run has ended. `task`: a task of the queue has ended. The others are the alerts that hooks get.
"""
EVENT_KINDS: tuple[EventKind, ...] = get_args(EventKind)
_OF_STREAM = ("stream", "name", "max_length")
_SCHEMES = ("redis://", "rediss://", "unix://")
_MOST = 100_000_000
_LONGEST_CHANNEL = 63
"""The maximum number of bytes of a name in PostgreSQL."""


@frozen
class EventReceiver:
    """A webhook, a Redis stream that keeps about `max_length` events, or a channel for NOTIFY."""

    webhook: Hook | None = None
    stream: str | None = field(default=None, repr=False)
    name: str = "psched:events"
    max_length: int = 100_000
    channel: str | None = None
    only: frozenset[EventKind] = frozenset(EVENT_KINDS)
    """The kinds of events that are sent."""


def event_receiver(value: Any) -> EventReceiver | None:
    """Accept a mapping with `url` (as for hooks), with `stream`, or with `channel`."""
    if value is None or isinstance(value, EventReceiver):
        return value
    if not isinstance(value, Mapping) or len({"url", "stream", "channel"} & value.keys()) != 1:
        raise ValueError(_EXPECTED)
    place = dict(value)
    only = _kinds(place.pop("only", EVENT_KINDS))
    if "url" in place:
        return EventReceiver(hook(place), only=only)
    if "channel" in place:
        return EventReceiver(channel=_channel(place), only=only)
    return evolve(_stream(place), only=only)


def _kinds(value: Any) -> frozenset[EventKind]:
    if not isinstance(value, list | tuple) or not value or not set(map(str, value)) <= set(EVENT_KINDS):
        raise ValueError(f"only: write a list with one or more of {', '.join(EVENT_KINDS)}")
    return frozenset(value)


def _channel(value: Mapping[str, Any]) -> str:
    _check_keys(value, ("channel",))
    channel = value["channel"]
    if not isinstance(channel, str) or not channel.isprintable() or not 1 <= len(channel.encode()) <= _LONGEST_CHANNEL:
        raise ValueError(f"channel: write a name of at most {_LONGEST_CHANNEL} bytes, such as psched_events")
    return channel


def _stream(value: Mapping[str, Any]) -> EventReceiver:
    _check_keys(value, _OF_STREAM)
    stream, name = value["stream"], value.get("name", EventReceiver().name)
    most = value.get("max_length", EventReceiver().max_length)
    if not isinstance(stream, str) or not stream.startswith(_SCHEMES):
        raise ValueError("stream: write a URL like redis://:password@host:6379/0")
    if not isinstance(name, str) or not name:
        raise ValueError("name: write the key of the stream, such as psched:events")
    if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= _MOST:
        raise ValueError(f"max_length: write a whole number from 1 to {_MOST}")
    return EventReceiver(None, stream, name, most)


def _check_keys(value: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in value.keys() - set(known):
        raise ValueError(f"unknown key {key!r}; expected {', '.join(known)}")

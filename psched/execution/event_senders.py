"""Sends events to their receivers: a webhook, a Redis stream, or a channel of PostgreSQL."""

from __future__ import annotations

import json
import threading
from typing import Any, Protocol, cast

from psched.config.events import EventReceiver
from psched.execution.webhooks import deliver
from psched.store import LeaseStore


class Sender(Protocol):
    name: str
    """The name of the receiver's watermark. It contains no secret."""

    def send(self, id_: str, event: dict[str, object]) -> None:
        """Deliver one event. Raises the errors of the receiver's driver."""


class WebhookSender:
    """Sends each event by POST."""

    def __init__(self, receiver: EventReceiver, closing: threading.Event) -> None:
        assert receiver.webhook is not None
        self.name = "webhook"
        self._hook = receiver.webhook
        self._closing = closing

    def send(self, id_: str, event: dict[str, object]) -> None:
        assert self._hook.url is not None
        deliver(self._hook.url, id_, event, self._closing, self._hook.secret, self._hook.timeout)


class StreamSender:
    """Appends each event to a Redis stream, with the fields `id` and `event`."""

    def __init__(self, receiver: EventReceiver) -> None:
        self.name = f"stream {receiver.name}"[:255]
        self._receiver = receiver
        self._client: Any = None

    def send(self, id_: str, event: dict[str, object]) -> None:
        import redis  # noqa: PLC0415 – an optional dependency

        if self._client is None:
            options: dict[str, Any] = {"socket_timeout": 10, "socket_connect_timeout": 10}
            self._client = redis.Redis.from_url(str(self._receiver.stream), **options)
        fields = {"id": id_, "event": json.dumps(event)}
        self._client.xadd(self._receiver.name, fields, maxlen=self._receiver.max_length, approximate=True)


_MOST_BYTES = 7999
"""The maximum number of bytes (ASCII) of a PostgreSQL notification."""
_KEPT = ("id", "event", "table", "key", "scheduled_time", "fence", "outcome", "left_out")
"""The members of an event that `notification` never leaves out. Together they have at most some 4,000 bytes."""


class ChannelSender:
    """Sends each event, with its `id`, by NOTIFY on the database of the table."""

    def __init__(self, channel: str, store: LeaseStore) -> None:
        self.name = f"channel {channel}"
        self._channel = channel
        self._store = store

    def send(self, id_: str, event: dict[str, object]) -> None:
        self._store.notify(self._channel, notification({"id": id_, **event}))


def notification(event: dict[str, object]) -> str:
    """Return the event as JSON of at most `_MOST_BYTES`.

    If necessary, the longest members are left out and listed in `left_out`.
    """
    text = json.dumps(event)
    while len(text) > _MOST_BYTES:
        longest = max(event.keys() - set(_KEPT), key=lambda name: len(json.dumps(event[name])))
        event = {name: value for name, value in event.items() if name != longest}
        event["left_out"] = [*cast("list[str]", event.get("left_out", [])), longest]
        text = json.dumps(event)
    return text


def event_sender(receiver: EventReceiver, store: LeaseStore, closing: threading.Event) -> Sender:
    """`closing`: ends the pauses of a webhook."""
    if receiver.webhook is not None:
        return WebhookSender(receiver, closing)
    if receiver.channel is not None:
        return ChannelSender(receiver.channel, store)
    return StreamSender(receiver)

"""Webhooks: POST requests with JSON, signed according to https://www.standardwebhooks.com."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
import uuid
from collections.abc import Mapping

from psched.http_client import Request, RequestError, post

PAUSES = (1.0, 5.0)
"""Seconds before the second and before the third attempt."""
_IDS = uuid.UUID("0f0a5c0e-1f2d-4f7a-9a9b-6f1f0f7a7c11")
"""The UUID namespace of message ids."""


def message_id(*names: object) -> str:
    """Return the id of the message that `names` describe. Every host computes the same id."""
    return f"psched_{uuid.uuid5(_IDS, json.dumps(names))}"


def webhook_request(
    url: str, id_: str, content: Mapping[str, object], secret: bytes | None = None, timeout: float = 30.0
) -> Request:
    """Return a request to send now. `secret`: signs the message, its id and the current time."""
    body = json.dumps(content).encode()
    at = str(int(time.time()))
    headers = {"Content-Type": "application/json", "Webhook-Id": id_, "Webhook-Timestamp": at}
    if secret is not None:
        digest = hmac.new(secret, b".".join((id_.encode(), at.encode(), body)), hashlib.sha256).digest()
        headers["Webhook-Signature"] = f"v1,{base64.b64encode(digest).decode()}"
    return Request(url, body, headers, timeout)


def deliver(
    url: str,
    id_: str,
    content: Mapping[str, object],
    closing: threading.Event,
    secret: bytes | None = None,
    timeout: float = 30.0,
) -> None:
    """Deliver a message, in up to three attempts within a few seconds; `closing` ends the attempts.

    Raises RequestError.
    """
    for pause in (*PAUSES, None):
        try:
            return post(webhook_request(url, id_, content, secret, timeout))
        except RequestError as error:
            if pause is None or error.is_final or closing.wait(pause):
                raise
    return None

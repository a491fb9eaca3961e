"""The keys `on_late`, `on_failure`, `on_recovered` and `hooks`: webhooks and commands."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from psched.config.healthchecks import EXPECTED_HTTP_URL, http_url, timeout
from psched.keys import check_key

_EXPECTED = "expected a URL (http:// or https://), or a command as a list of arguments"
_KEYS = {"url": ("url", "secret", "timeout"), "command": ("command", "timeout")}
_SHORTEST_SECRET = 16
"""The fewest bytes that a secret may have."""
_STANDARD = "whsec_"
"""The prefix of a secret that is written in base64."""


@frozen
class Hook:
    """A URL that gets a POST, or a command with its arguments.

    A hook without URL and command is false: there is nothing to call.
    """

    url: str | None = field(default=None, repr=False)
    command: tuple[str, ...] = ()
    secret: bytes | None = field(default=None, repr=False)
    timeout: float = 30.0

    def __bool__(self) -> bool:
        return self.url is not None or bool(self.command)


NO_HOOK = Hook()


def hook(value: Any) -> Hook:
    """Accept a URL, a command as a list of arguments (run without a shell), or a mapping with url or command."""
    if isinstance(value, Hook):
        return value
    if isinstance(value, str):
        value = {"url": value}
    elif isinstance(value, list | tuple):
        value = {"command": value}
    if not isinstance(value, Mapping) or len({"url", "command"} & value.keys()) != 1:
        raise ValueError(f"{_EXPECTED}, or a mapping with either url or command")
    kind = "url" if "url" in value else "command"
    for key in value.keys() - set(_KEYS[kind]):
        raise ValueError(f"unknown key {key!r}; expected {', '.join(_KEYS[kind])}")
    seconds = timeout(value.get("timeout", NO_HOOK.timeout))
    if kind == "command":
        return Hook(command=_command(value["command"]), timeout=seconds)
    return Hook(_url(value["url"]), (), _secret(value.get("secret")), seconds)


def hooks(value: Any) -> Mapping[str, Hook]:
    """Accept a mapping from names to hooks. Schedules use these names as their `on_failure`."""
    if not isinstance(value, Mapping):
        raise ValueError("expected a mapping from names to hooks, such as {billing: https://hooks.example.com/billing}")
    found = {}
    for name, each in value.items():
        try:
            found[check_key(name, "the name of a hook")] = hook(each)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return found


def _url(value: Any) -> str:
    try:
        return http_url(value)
    except ValueError as error:
        raise ValueError(_EXPECTED if str(error) == EXPECTED_HTTP_URL else str(error)) from None


def _command(value: Any) -> tuple[str, ...]:
    is_list = isinstance(value, list | tuple) and all(isinstance(item, str) and "\0" not in item for item in value)
    if not is_list or (value and not value[0]):
        raise ValueError(_EXPECTED)
    return tuple(value)


def _secret(value: Any) -> bytes | None:
    """Return the bytes of a secret: the decoded base64 after `whsec_`, or the UTF-8 bytes of any other text."""
    if value is None:
        return None
    fault = f"secret: too short, or not text; write {_STANDARD} and base64, or at least {_SHORTEST_SECRET} characters"
    if not isinstance(value, str):
        raise ValueError(fault)
    try:
        known = base64.b64decode(value.removeprefix(_STANDARD), validate=True) if value.startswith(_STANDARD) else None
    except binascii.Error:
        raise ValueError(f"secret: the text after {_STANDARD} is not base64") from None
    secret = value.encode() if known is None else known
    if len(secret) < _SHORTEST_SECRET:
        raise ValueError(fault)
    return secret

"""The key `healthchecks`: the ping URL of each schedule, by name or by a template."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from attrs import field, frozen

from psched.time_text import parse_seconds

_PLACEHOLDERS = ("key", "slug", "type")
_KEYS = ("url", "schedules", "timeout")
EXPECTED_HTTP_URL = "expected a URL (http:// or https://)"
_TIMEOUT = 10.0
MAX_TIMEOUT = 300.0
"""The longest `timeout` of a request or of a command, in seconds."""


@frozen
class Healthchecks:
    """The URLs to ping for the runs of schedules. These URLs are secrets."""

    template: str | None = field(default=None, repr=False)
    urls: Mapping[str, str] = field(factory=dict, repr=False, hash=False)
    timeout: float = _TIMEOUT

    def url_of(self, key: str, type_: str) -> str | None:
        own = self.urls.get(key)
        if own is not None or self.template is None:
            return own
        return self.template.format(key=quote(key, safe=""), slug=slug(key), type=quote(type_, safe=""))


def slug(key: str) -> str:
    """Return the key in lower case. A `-` replaces each sequence of characters except a-z, 0-9 and _.

    Such sequences at the ends of the key are left out.
    """
    return re.sub(r"[^a-z0-9_]+", "-", key.lower()).strip("-") or "-"


def healthchecks(value: Any) -> Healthchecks | None:
    """Accept a URL with a placeholder, or a mapping with some of url, schedules and timeout."""
    if value is None or isinstance(value, Healthchecks):
        return value
    if isinstance(value, str):
        value = {"url": value}
    if not isinstance(value, Mapping) or not ({"url", "schedules"} & value.keys()):
        raise ValueError("expected a URL with {slug} or {key}, or a mapping with url or schedules")
    for key in value.keys() - set(_KEYS):
        raise ValueError(f"unknown key {key!r}; expected url, schedules or timeout")
    template, urls = value.get("url"), value.get("schedules") or {}
    if template is not None:
        _check_template(template)
    if not isinstance(urls, Mapping):
        raise ValueError("schedules: expected a mapping of a schedule's key to its ping URL")
    for key, url in urls.items():
        _within(f"schedules.{key}", url)
    return Healthchecks(template, {str(key): url for key, url in urls.items()}, timeout(value.get("timeout", _TIMEOUT)))


def _within(place: str, url: Any) -> None:
    try:
        http_url(url)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def _check_template(template: Any) -> None:
    http_url(template)
    try:
        names = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    except ValueError as error:
        raise ValueError(f"url: {error}; write {{{{ for a brace outside of a placeholder") from None
    if names - set(_PLACEHOLDERS):  # not quoted, as a variable may have been inserted between the braces
        raise ValueError(
            "url: expected no placeholders except {slug}, {key} and {type}; "
            "write {{ for a brace outside of a placeholder"
        )
    if not names & {"key", "slug"}:
        raise ValueError(
            "url: has neither {slug} nor {key}, so that all schedules would ping one check; "
            "write a URL for each schedule under schedules:"
        )
    if re.search(r"\{\w+[!:]", template):
        raise ValueError("url: expected a placeholder without ! or :, such as {slug}")


def http_url(value: Any) -> str:
    """Accept an absolute http or https URL. Errors do not quote the URL, because it may be a secret."""
    if not isinstance(value, str) or not value.startswith(("http://", "https://")):
        raise ValueError(EXPECTED_HTTP_URL)
    if not value.isascii() or not value.isprintable() or " " in value:
        raise ValueError("expected a URL of ASCII characters without spaces; write others as %XX")
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        raise ValueError("expected a URL with a valid host and port") from None
    if not parts.hostname or port == 0:
        raise ValueError("expected a URL with a host, such as https://hooks.example.com/psched")
    if parts.username is not None or parts.fragment:
        raise ValueError("expected a URL without user, password and #fragment")
    return value


def timeout(value: Any) -> float:
    """Accept seconds or a duration of at most MAX_TIMEOUT."""
    expected = f"timeout: expected seconds or a duration > 0 and ≤ {MAX_TIMEOUT:.0f}"
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(expected)
    try:
        seconds = parse_seconds(value) if isinstance(value, str) else float(value)
    except ValueError:
        raise ValueError(expected) from None
    if not 0 < seconds <= MAX_TIMEOUT:
        raise ValueError(expected)
    return seconds

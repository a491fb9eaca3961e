"""Sends HTTP POST requests."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

_USER_AGENT = "psched"
_WORTH_A_RETRY = (408, 425, 429)
"""The HTTP statuses below 500 after which the same request may succeed later."""


@dataclass(frozen=True, slots=True)
class Request:
    """One POST request. The `timeout` in seconds applies to the connection and to the answer separately."""

    url: str = field(repr=False)
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 10.0

    @property
    def host(self) -> str:
        """The host of the URL. Messages show only the host, because the rest of the URL may be secret."""
        return urlsplit(self.url).hostname or "?"


class RequestError(OSError):
    """The request failed, or its answer was not 2xx. `is_final`: whether the same request would fail again."""

    def __init__(self, message: str, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Turns a redirect into an error. urllib would follow the redirect with a GET."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def post(request: Request) -> None:
    """Send one request through the proxies that the environment variables name.

    Raises RequestError. Its message does not contain the URL.
    """
    headers = {"User-Agent": _USER_AGENT, **request.headers}
    sent = urllib.request.Request(request.url, request.body, headers, method="POST")  # noqa: S310 – the URL is http or https
    opener = urllib.request.build_opener(_NoRedirects)
    try:
        with opener.open(sent, timeout=request.timeout):
            return
    except urllib.error.HTTPError as error:
        error.close()
        is_final = error.code < 500 and error.code not in _WORTH_A_RETRY
        raise RequestError(f"HTTP {error.code} {error.reason}", is_final) from None
    except urllib.error.URLError as error:
        raise RequestError(str(error.reason)) from None
    except (OSError, http.client.HTTPException) as error:
        raise RequestError(str(error) or type(error).__name__) from None

"""Decides who may see the pages, and who may change what."""

from __future__ import annotations

import base64
import binascii
import inspect
import os
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request

from psched.config.web import Web, is_loopback
from psched.errors import ConfigError

ACTIONS: Final = ("run-now", "pause", "resume", "modify", "retry", "cancel", "delete")
"""The possible actions of visitors: the first four on schedules, the others on tasks."""
FULL: Final = "PSCHED_WEB_AUTH"
"""The environment variable with `user:password` (Basic authentication) for users who may act."""
READ_ONLY: Final = "PSCHED_WEB_READ_AUTH"
"""The environment variable with `user:password` (Basic authentication) for users who may only look."""
_LONGEST_USER = 100
_OF_PROXIES: Final = frozenset({"forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip"})
"""Headers that only proxies send, besides those that begin with `x-forwarded`."""


@dataclass(frozen=True, slots=True)
class Access:
    """A visitor who may see the pages: the user name for recorded actions, and the allowed `ACTIONS`."""

    user: str
    actions: Collection[str] = ()


AccessFunction = Callable[[Request], "Access | Awaitable[Access | None] | None"]
"""Returns what a visitor may do; None if the visitor may see nothing. May be asynchronous."""


@dataclass(frozen=True, slots=True)
class RefusedError(Exception):
    """A request is refused. The message says why."""

    status: HTTPStatus
    message: str

    @property
    def headers(self) -> Mapping[str, str]:
        unauthorized = self.status == HTTPStatus.UNAUTHORIZED
        return {"WWW-Authenticate": 'Basic realm="psched", charset="UTF-8"'} if unauthorized else {}


class Gate:
    """Finds out what a visitor may do: by the function `access`, by the header of a proxy, or by a password.

    If none of these is configured, only visitors on this host may see the pages.
    """

    def __init__(self, web: Web, access: AccessFunction | None, environment: Mapping[str, str] | None = None) -> None:
        """`environment`: has the passwords; None: `os.environ`.

        Raises ConfigError if a password's variable is not `user:password`.
        """
        self._web = web
        self._access = access
        variables = os.environ if environment is None else environment
        self._passwords = {
            _credentials(name, variables[name]): actions
            for name, actions in ((FULL, ACTIONS), (READ_ONLY, ()))
            if variables.get(name)
        }

    @property
    def authenticates(self) -> bool:
        """Whether visitors are identified by more than their address."""
        return self._access is not None or self._web.user_header is not None or bool(self._passwords)

    async def access_of(self, request: Request) -> Access:
        """Return what the visitor may do. Raises RefusedError."""
        if self._access is not None:
            answer = self._access(request)
            found = await answer if inspect.isawaitable(answer) else answer
            if found is None:
                raise RefusedError(HTTPStatus.FORBIDDEN, "you may not see these pages")
        elif self._web.user_header is not None:
            found = Access(self._name_by_proxy(request, self._web.user_header), ACTIONS)
        elif self._passwords:
            found = self._known_by_password(request)
        else:
            self._check_is_local(request)
            found = Access("local", ACTIONS)
        allowed = frozenset(ACTIONS).intersection(found.actions if self._web.actions else ())
        return Access(found.user[:_LONGEST_USER], allowed)

    def _name_by_proxy(self, request: Request, header: str) -> str:
        peer = "" if request.client is None else request.client.host
        try:
            is_trusted = any(ip_address(peer) in network for network in self._web.trusted_proxies)
        except ValueError:
            is_trusted = False
        name = request.headers.get(header, "").strip()
        if not is_trusted or not name:
            raise RefusedError(HTTPStatus.FORBIDDEN, "only users that the proxy names may see these pages")
        return name

    def _known_by_password(self, request: Request) -> Access:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "basic":
            try:
                user, colon, password = base64.b64decode(given, validate=True).decode().partition(":")
            except (binascii.Error, UnicodeDecodeError):
                user = colon = password = ""
            found = None
            for known, actions in self._passwords.items():  # compare all passwords, so that the time reveals nothing
                if secrets.compare_digest(known.encode(), f"{user}:{password}".encode()) and colon:
                    found = Access(user, actions)
            if found is not None:
                return found
        raise RefusedError(HTTPStatus.UNAUTHORIZED, "enter a user name and a password")

    def _check_is_local(self, request: Request) -> None:
        """Raise RefusedError if the visitor is on another host, names another host in `Host`, or comes through a proxy.

        The check of the name prevents DNS rebinding.
        """
        peer = "" if request.client is None else request.client.host
        reason, remedy = None, f"set {FULL}, or user_header and trusted_proxies"
        if not is_loopback(peer) or not self._is_own(request.headers.get("host", "")):
            reason, remedy = "are open only on this host, at http://127.0.0.1", f"{remedy}, or hosts"
        elif (trace := self._trace_of_proxy(request)) is not None:
            reason = f"are open only on this host, but this request came through a proxy ({trace})"
        if reason is not None:
            raise RefusedError(HTTPStatus.FORBIDDEN, f"without authentication, these pages {reason}; {remedy}")

    def _trace_of_proxy(self, request: Request) -> str | None:
        """Return what shows that a proxy sent this request; None if nothing shows it.

        The address and `Host` of the request do not show this: a proxy on this host has a local address, and many
        proxies replace `Host` by the name to which they connect.
        """
        headers = request.headers
        for name in headers:
            if name in _OF_PROXIES or name.startswith("x-forwarded"):
                return f"header {name}"
        if request.scope.get("http_version") == "1.0":  # nginx's default before 1.29.7; no browser uses it
            return "HTTP/1.0"
        origin = headers.get("origin")
        if origin is None and headers.get("sec-fetch-site") == "same-origin":
            origin = headers.get("referer")
        if origin is None or self._is_own(netloc_of(origin)):
            return None
        return "its page has the name of another host"

    def _is_own(self, netloc: str) -> bool:
        """Return whether the host of `host:port` is this host."""
        host = host_of(netloc)
        return is_loopback(host) or host in self._web.hosts


def host_of(netloc: str) -> str:
    """Return the host name of `host:port` in lower case; an empty string if there is none."""
    try:
        return urlsplit(f"//{netloc}").hostname or ""
    except ValueError:
        return ""


def netloc_of(url: str) -> str:
    """Return `host:port` of a URL; an empty string if there is none."""
    try:
        return urlsplit(url).netloc
    except ValueError:
        return ""


def _credentials(name: str, value: str) -> str:
    user, colon, password = value.partition(":")
    if not (user and colon and password):
        raise ConfigError(f"{name}: expected user:password")
    return value

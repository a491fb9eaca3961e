from __future__ import annotations

from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_READS: Final = ("GET", "HEAD")


class Protection:
    """Adds security headers to each response, and refuses requests of other sites that would change something."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        problem = None if scope["method"] in _READS else foreign(Headers(scope=scope))
        answer: ASGIApp = self._app
        if problem is not None:
            answer = PlainTextResponse(f"refused: {problem}\n", HTTPStatus.FORBIDDEN)
        await answer(scope, receive, send_protected)


def foreign(headers: Headers) -> str | None:
    """Return why a request that changes something may come from another site; None if it comes from one of these pages.

    Browsers send `Sec-Fetch-Site`, `Origin` or both with each POST, and pages cannot forge these headers.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return None if site == "same-origin" else f"Sec-Fetch-Site is {site}, not same-origin"
    origin = headers.get("origin")
    if origin is None:
        return "neither Sec-Fetch-Site nor Origin is given"
    try:
        netloc = urlsplit(origin).netloc
    except ValueError:
        netloc = ""
    is_own = bool(netloc) and netloc.lower() == headers.get("host", "").lower()
    return None if is_own else "Origin is another site"

"""Runs the command, or calls the URL, that is configured for an event: `on_late`, `on_failure`. In children."""

from __future__ import annotations

import json
import logging
import os
import threading
import urllib.request
from collections.abc import Mapping

from psched.daemon.wording import one_line
from psched.handlers.program import Program

log = logging.getLogger(__name__)

_HOOK_SECONDS = 30.0
"""How long a hook may take."""
_GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL for a hook that takes longer, or runs at a stop."""
STOPPING = _GRACE + 1
"""Seconds after which a hook that runs at a stop is gone."""


class Hook:
    """One configured hook; empty: nothing is to be run."""

    def __init__(self, name: str, target: tuple[str, ...], closing: threading.Event) -> None:
        """`name`: the key in the configuration; `target`: a command with its arguments, or one URL.

        A hook that is running when `closing` is set is ended.
        """
        self._name = name
        self._target = target
        self._closing = closing

    def __bool__(self) -> bool:
        return bool(self._target)

    def tell(self, key: str, time: int, facts: Mapping[str, object]) -> bool:
        """Run the hook for the occurrence `time` of `key`; False when it failed, or was cut short."""
        try:
            failure = self._request(facts) if self._is_url() else self._execute(facts)
        except (OSError, ValueError) as error:
            failure = one_line(error)
        if failure is not None:
            log.error("key=%s %s failed: %s; the hook will be run again", key, self._name, failure)
        else:
            log.info("key=%s %s was run for its occurrence %d", key, self._name, time)
        return failure is None

    def _execute(self, facts: Mapping[str, object]) -> str | None:
        """Run the command, the facts in its environment, and never by way of a shell."""
        told = {f"PSCHED_{name.upper()}": _in_environment(value) for name, value in facts.items()}
        with Program(self._target, None, {**os.environ, **told}, self._closing) as program:
            ending = program.wait(_HOOK_SECONDS, _GRACE, _GRACE)
        if ending.status == 0 and ending.cut_short is None:
            return None
        return f"{ending.cut_short or f'exit status {ending.status}'} {ending.tail}".strip()

    def _request(self, facts: Mapping[str, object]) -> str | None:
        """POST the facts as JSON."""
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._target[0], json.dumps(facts).encode(), headers)  # noqa: S310 – http(s)
        with urllib.request.urlopen(request, timeout=_HOOK_SECONDS):  # noqa: S310 – checked by the configuration
            return None  # what is no success raises

    def _is_url(self) -> bool:
        return len(self._target) == 1 and self._target[0].startswith(("http://", "https://"))


def _in_environment(value: object) -> str:
    """Return a fact as an environment can have it."""
    return "" if value is None else str(value).replace("\0", "\N{REPLACEMENT CHARACTER}")

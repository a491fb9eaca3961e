"""Creates, upgrades, checks and diagnoses one table, and checks the server's version and settings."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from redis.exceptions import ResponseError

from psched.backends.common import layout_version
from psched.backends.common.layout_version import RecordedLayout, Standing
from psched.backends.common.table_name_check import checked_name
from psched.backends.redis import script_composer, upgrades
from psched.backends.redis.client import RedisServer, is_temporary
from psched.errors import ConfigError
from psched.store.doctor_finding import Finding, unwritable

log = logging.getLogger(__name__)

_OLDEST = (6, 0)


class RedisTable:
    """One table. The key `meta` of a table holds the table's kind and layout."""

    def __init__(self, server: RedisServer, name: str, kind: str) -> None:
        """Raises ConfigError if `name` is not a plain identifier."""
        self.name = checked_name(name)
        self.kind = kind
        self.prefix = f"{{psched}}:{self.name}:"
        self._server = server

    @property
    def meta(self) -> str:
        """The first key that every script takes."""
        return f"{self.prefix}meta"

    def create(self) -> None:
        """Create the table, or upgrade a table of an earlier layout. Raises ConfigError."""
        self._require(creates=True)

    def pending(self) -> list[str]:
        """Return the scripts that `create` would run on an existing table. Raises ConfigError as `check` does."""
        standing, recorded = self._server.run(lambda _: self._standing())
        if standing is Standing.OLDER and recorded is not None:
            return [" ".join(script.text.split()) for script in upgrades.scripts(recorded.layout, self.kind)]
        self._require(creates=False)
        return []

    def check(self) -> None:
        self._require(creates=False)
        standing, recorded = self._server.run(lambda _: self._standing())
        if standing is Standing.NEWER and recorded is not None:
            log.warning("%s", layout_version.newer(self._has(), recorded.layout))
        warning = self._server.run(lambda _: self._eviction())
        if warning is not None:
            log.warning("table=%s %s", self.name, warning)

    def diagnose(self, writing: bool) -> Iterator[Finding]:
        problem = self._server.run(lambda _: self._problem())
        yield Finding("table", problem is None, f"{self.name} exists" if problem is None else problem)
        if problem is None:
            yield from self._server.run(lambda _: list(self._findings(writing)))

    def _require(self, creates: bool) -> None:
        problem = self._server.run(lambda _: self._problem(creates))
        if problem is not None:
            raise ConfigError(problem)

    def _problem(self, creates: bool = False) -> str | None:
        """Return why the table cannot be used, or None. `creates`: whether to create or upgrade the table first."""
        version = str(self._info("server").get("redis_version", ""))
        numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
        if numbers and numbers < _OLDEST:
            return f"Redis {version} is too old: 6.0 or later is needed"
        client = self._server.client()
        if creates:
            client.hsetnx(self.meta, "oldest_layout", layout_version.oldest_usable())
            client.hsetnx(self.meta, "layout", upgrades.layout_text(self.kind))
            client.hsetnx(self.meta, "kind", self.kind)
        kind, layout = client.hmget(self.meta, "kind", "layout")
        if kind is None or layout is None:
            return f"the table {self.name} does not exist; create it with: psched init (for a queue: psched queue init)"
        if kind != self.kind.encode():
            found = kind.decode(errors="replace")
            return f"the table {self.name} holds {found}, not {self.kind}; configure another table"
        standing, recorded = self._standing()
        if standing is Standing.OLDER and recorded is not None:
            return self._upgrade() if creates else layout_version.needs_upgrade(self._has(), recorded.layout)
        if standing is Standing.TOO_NEW and recorded is not None:
            return layout_version.too_new(self._has(), recorded.layout)
        if standing is Standing.UNRELEASED:
            return (
                f"the table {self.name} was created by another version of psched (its layout is "
                f"{layout.decode(errors='replace')}, this version needs {upgrades.layout_text(self.kind)}), and is "
                f"not changed. Create it again: stop all workers, delete all keys {self.prefix}* (their rows are "
                "lost; docs/redis.md says how), and run: psched init (for a queue: psched queue init)"
            )
        return None

    def _standing(self) -> tuple[Standing, RecordedLayout | None]:
        found, oldest = self._server.client().hmget(self.meta, "layout", "oldest_layout")
        recorded = upgrades.read_recorded(found, oldest)
        own = upgrades.layout_text(self.kind).partition(".")[2]
        return layout_version.standing(recorded, own, lambda layout: upgrades.released(layout, self.kind)), recorded

    def _upgrade(self) -> str | None:
        """Run the scripts of the upgrade steps, then record the layout. Return an error message or None.

        Other processes that upgrade wait. Afterwards the scripts of layouts that are too old are refused.
        """
        lock = self._server.client().lock(f"{self.prefix}init-lock", timeout=upgrades.LOCKED)
        lock.acquire(token=secrets.token_hex(8))  # redis-py's own token leaves a file of libuuid open
        try:
            standing, recorded = self._standing()
            if standing is not Standing.OLDER or recorded is None:
                return self._problem()
            for script in upgrades.scripts(recorded.layout, self.kind):
                while self._server.call(script, [self.meta], []):
                    lock.reacquire()  # extend the lock for the next script
            made = {"layout": upgrades.layout_text(self.kind), "oldest_layout": layout_version.oldest_usable()}
            self._server.client().hset(self.meta, mapping=made)
        finally:
            lock.release()
        return None

    def _has(self) -> str:
        return f"the table {self.name} has"

    def _findings(self, writing: bool) -> Iterator[Finding]:
        self._server.call(script_composer.compose(self.kind, "next_due"), [self.meta], [-1])
        server = self._info("server")
        mode = "cluster" if self._info("cluster").get("cluster_enabled") else str(server.get("redis_mode", "?"))
        yield Finding("server", True, f"{_version(server)}, {mode}; psched's scripts work")
        standing, recorded = self._standing()
        if standing is Standing.NEWER and recorded is not None:
            yield Finding("layout", True, layout_version.newer(self._has(), recorded.layout), warning=True)
        yield self._server.location.encryption()
        if writing:
            yield self._writing()
        warning = self._eviction()
        yield Finding("eviction", warning is None, "the server never evicts keys" if warning is None else warning)
        yield self._persistence()

    def _writing(self) -> Finding:
        """Test whether the user may write, by deleting a field that does not exist."""
        try:
            self._server.node(self.meta).hdel(self.meta, "")
        except ResponseError as error:
            return unwritable(self.name, error)
        return Finding("writing", True, f"{self.name} can be written")

    def _eviction(self) -> str | None:
        policy = self._info("memory").get("maxmemory_policy")
        if policy in (None, "noeviction"):
            return None
        return (
            f"the server may evict rows when its memory is full (maxmemory-policy {policy}); "
            "set: maxmemory-policy noeviction"
        )

    def _persistence(self) -> Finding:
        if self._info("persistence").get("aof_enabled"):
            words = {
                "always": "keeps every acknowledged write (appendfsync always)",
                "everysec": "may lose the last second or two of writes if the machine fails (appendfsync everysec)",
                "no": "may lose unflushed writes if the machine fails (appendfsync no)",
            }.get(self._configured("appendfsync"), "keeps an append-only file")
            return Finding("persistence", True, f"the server {words}")
        save = self._configured("save")
        if save == "":
            return Finding(
                "persistence", False, "a restart of the server loses everything", remedy="set: appendonly yes"
            )
        kept = "as often as the setting `save` says" if save == "?" else f"save {save}"
        return Finding(
            "persistence",
            True,
            f"the server keeps only snapshots ({kept}): a crash loses all later writes; "
            "set appendonly yes to keep them",
        )

    def _info(self, section: str) -> dict[str, Any]:
        """Return a section of INFO; empty if the server refuses it."""
        found: dict[str, Any] = self._asked(lambda client: client.info(section), {})
        return found

    def _configured(self, name: str) -> str:
        found: dict[str, str] = self._asked(lambda client: client.config_get(name), {})
        return found.get(name, "?")

    def _asked(self, question: Any, otherwise: Any) -> Any:
        """Call `question` with the server that holds the table.

        Return `otherwise` if a hosted server forbids the command.
        """
        try:
            return question(self._server.node(self.meta))
        except ResponseError as error:
            if is_temporary(error):
                raise
            return otherwise


def _version(server: Mapping[str, Any]) -> str:
    """Return the server's name and version. Valkey also reports the Redis version with which it is compatible."""
    if "valkey_version" in server:
        return f"Valkey {server['valkey_version']}"
    return f"Redis {server.get('redis_version', '?')}"

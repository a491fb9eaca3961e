"""What must hold between the rows of a Redis queue and its sets, whatever calls were made."""

from __future__ import annotations

from typing import Any

from tests.stores.rows import RedisRows

_SPAN = 2**44


class Snapshot:
    """All keys of one queue, read without psched. `rows`: the hashes by key; `sets`: the members of all other keys."""

    def __init__(self, rows: RedisRows) -> None:
        names = sorted(rows.client.scan_iter(f"{rows.prefix}*", count=1000))
        short = [name.removeprefix(rows.prefix) for name in names]
        pipeline = rows.client.pipeline(transaction=False)
        for name, full in zip(short, names, strict=True):
            _read(pipeline, name, full)
        found = dict(zip(short, pipeline.execute(), strict=True))
        self.rows: dict[str, dict[str, str]] = {
            name.removeprefix("row:"): content for name, content in found.items() if name.startswith("row:")
        }
        self.sets: dict[str, dict[str, float]] = {
            name: dict(content) if isinstance(content, list) else dict.fromkeys(content, 0.0)
            for name, content in found.items()
            if not name.startswith(("row:", "wake", "meta"))
        }

    def faults(self) -> list[str]:
        """Return what is wrong. Every row must be in all sets in which it belongs, and in no others."""
        found = [f"{name} is of nobody" for name in self.sets if not self._is_known(name)]
        for key, row in self.rows.items():
            places = {name for name, members in self.sets.items() if key in members and not _is_of_users(name)}
            if places != self._expected(key, row):
                found.append(f"{key} ({row['status']}, {row['type']}) is in {places}, not {self._expected(key, row)}")
        for name in self.sets:
            if name.startswith("line:"):
                found += self._turn_faults(name, *_of_line(name))
        return found

    def _expected(self, key: str, row: dict[str, str]) -> set[str]:
        type_, user, status = row["type"], row["user"], row["status"]
        if status == "running":
            return {"keys", "leases:", f"leases:{type_}", f"run:{user}", f"held:{row['holder']}"}
        if status == "waiting" and key in self.sets.get("later:", {}):
            return {"keys", "later:", f"later:{type_}"}
        if status == "waiting":
            return {"keys", _line("", user), _line(type_, user)}
        ended = set() if status == "finished" else {f"ended:{status}"}
        return {"keys", *ended, *(["purge"] if "purge_at" in row else [])}

    def _turn_faults(self, line: str, type_: str, user: str) -> list[str]:
        """Return what is wrong with a line.

        It must have a turn with the due time of its head, or be blocked without room for it.
        """
        score, head = min((score, key.encode()) for key, score in self.sets[line].items())
        first = score % _SPAN
        turn = self.sets.get(f"turn:{type_}", {}).get(user)
        blocked = type_ in self.sets.get(f"blocked:{user}", {})
        if blocked and self._has_room(user, head.decode()):
            return [f"{line} is blocked, although {head.decode()} might run"]
        if blocked == (turn is not None) or turn not in (None, first):
            return [f"{line} has turn {turn}, blocked {blocked}"]
        return []

    def _has_room(self, user: str, head: str) -> bool:
        running = self.sets.get(f"run:{user}", {})
        limits = [*running.values(), float(self.rows[head].get("max_running", "inf"))]
        return len(running) < min(limits)

    def _is_known(self, name: str) -> bool:
        kind, _, rest = name.partition(":")
        if kind == "turn":
            return all(_line(rest, user) in self.sets for user in self.sets[name])
        if kind == "blocked":
            return all(_line(type_, rest) in self.sets for type_ in self.sets[name])
        if name == "types":
            return {row["type"] for row in self.rows.values()} <= self.sets[name].keys()
        return set(self.sets[name]) <= set(self.rows)


def _read(pipeline: Any, name: str, full: str) -> None:
    if name.startswith(("row:", "meta", "failures", "watermarks", "calendars")):
        pipeline.hgetall(full)
    elif name.startswith(("held:", "blocked:")):
        pipeline.smembers(full)
    elif name == "outbox":
        pipeline.xlen(full)
    elif name.startswith("wake"):
        pipeline.llen(full)
    else:
        pipeline.zrange(full, 0, -1, withscores=True)


def _is_of_users(name: str) -> bool:
    return name.startswith(("turn:", "blocked:"))


def _line(type_: str, user: str) -> str:
    return f"line:{len(type_.encode())}:{type_}:{user}"


def _of_line(name: str) -> tuple[str, str]:
    """Return the type and user of a line, given its name."""
    length, _, words = name.removeprefix("line:").partition(":")
    both = words.encode()
    return both[: int(length)].decode(), both[int(length) + 1 :].decode()

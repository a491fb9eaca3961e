"""The floor of Redis, by redis-py alone: a script for each operation. Runs in processes of its own."""

from __future__ import annotations

import secrets
from typing import Any

import redis

_CLAIM = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local keys, rows = redis.call('ZRANGEBYSCORE', 'floor:due', '-inf', now, 'LIMIT', 0, ARGV[2]), {}
for _, key in ipairs(keys) do
  redis.call('ZADD', 'floor:due', now + 300000, key)
  redis.call('HSET', 'floor:row:' .. key, 'fence', ARGV[1], 'status', 'running')
  rows[#rows + 1] = {key, redis.call('HGETALL', 'floor:row:' .. key)}
end
return rows
"""
_FINISH = """
local time = redis.call('TIME')
local done = 0
for place = 2, #ARGV do
  local row = 'floor:row:' .. ARGV[place]
  if redis.call('HGET', row, 'fence') == ARGV[1] then
    redis.call('ZREM', 'floor:due', ARGV[place])
    redis.call('HSET', row, 'status', 'finished', 'finished_at', time[1])
    redis.call('ZADD', 'floor:purge', time[1] + 300, ARGV[place])
    done = done + 1
  end
end
return done
"""
_INSERT = """
local time = redis.call('TIME')
for place = 1, #ARGV do
  if redis.call('HSETNX', 'floor:row:' .. ARGV[place], 'type', 'type') == 1 then
    redis.call('HSET', 'floor:row:' .. ARGV[place], 'data', '{}', 'status', 'waiting')
    redis.call('ZADD', 'floor:due', time[1] * 1000 + math.floor(time[2] / 1000), ARGV[place])
  end
end
"""
_ADD = """
local time = redis.call('TIME')
for place = 1, #ARGV do
  local row = 'floor:schedule:' .. ARGV[place]
  if redis.call('HSETNX', row, 'type', 'type') == 1 then
    redis.call('HSET', row, 'data', '{}', 'status', 'waiting', 'fence', 0, 'attempts', 0, 'cron', '0 0 * * *',
      'timezone', 'UTC', 'delay_ms', 0, 'next_time', 1767225600, 'version', 0, 'catch_up', 'all')
    redis.call('ZADD', 'floor:schedules', time[1] * 1000 + math.floor(time[2] / 1000), ARGV[place])
  end
end
"""
_PAGE = 1000


class RedisFloor:
    """Runs a script for each operation. Redis executes a script as one transaction."""

    def __init__(self, url: str) -> None:
        self._url = url

    def connect(self) -> None:
        """Connect, and register the scripts."""
        self._connection = redis.Redis.from_url(self._url)
        self._scripts = [self._connection.register_script(text) for text in (_CLAIM, _FINISH, _INSERT, _ADD)]
        self._connection.ping()

    def create(self) -> None:
        """Do nothing, because Redis needs no tables."""

    def insert(self, key: str) -> None:
        """Write one task."""
        self._scripts[2](args=[key])

    def insert_many(self, keys: list[str]) -> None:
        """Write many tasks, a thousand by each script, so that no other client waits long for the server."""
        self._many(2, keys)

    def add_many(self, keys: list[str]) -> None:
        """Write many schedules, like `insert_many`."""
        self._many(3, keys)

    def _many(self, script: int, keys: list[str]) -> None:
        for start in range(0, len(keys), _PAGE):
            self._scripts[script](args=keys[start : start + _PAGE])

    def claim(self, limit: int) -> tuple[list[Any], Any]:
        """Lease up to `limit` due tasks."""
        fence = str(secrets.randbits(62))
        return [row[0] for row in self._scripts[0](args=[fence, limit])], fence

    def finish(self, keys: list[Any], fence: Any) -> None:
        """Finish tasks under their lease."""
        assert self._scripts[1](args=[fence, *keys]) == len(keys)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

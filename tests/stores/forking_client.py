"""A client that has used its store and then forks: both processes use the store. Prints how often each got its answer.

Arguments: type, url, table.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from psched.backends import open_stores
from psched.store import ScheduleStore, StoreSettings

TIMES = 40


def main(type_: str, url: str, table: str) -> None:
    store = open_stores(type_, StoreSettings(url=url, holder="host/1/x", schedules=table)).schedules
    assert store is not None
    keys = [row.key for row in store.list()]
    reading, writing = os.pipe()
    child = os.fork()
    count = answers(store, keys[:1] * TIMES if child else keys[1:] * TIMES)
    if child == 0:
        os.write(writing, str(count).encode())
        store.close()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    count += answers(store, keys)  # its end has not ended our session
    store.close()
    print(json.dumps([status, int(os.read(reading, 10)), count]))


def answers(store: ScheduleStore, keys: Sequence[str]) -> int:
    """Get the row of each key. Return how many rows had the right key."""
    rows = [store.get(key) for key in keys]
    return sum(row is not None and row.key == key for row, key in zip(rows, keys, strict=True))


if __name__ == "__main__":
    main(*sys.argv[1:])

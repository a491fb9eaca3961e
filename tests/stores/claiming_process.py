"""A process of the concurrency test: claims and advances rows until none is due, then prints the keys that it ran.

Its arguments are type, url, table and holder. It prints `ready` and waits for a line, so that all processes begin
together.
"""

from __future__ import annotations

import json
import sys

from psched.backends import open_stores
from psched.clock import boottime
from psched.store import StoreSettings

FAR_OFF = 2_000_000_000


def main(type_: str, url: str, table: str, holder: str) -> None:
    store = open_stores(type_, StoreSettings(url=url, holder=holder, schedules=table)).schedules
    assert store is not None
    print("ready", flush=True)
    sys.stdin.readline()
    keys = []
    while claims := store.acquire(7, 300):
        for claim in claims:
            store.advance(claim, FAR_OFF, FAR_OFF, boottime() + 20)
            keys.append(claim.row.key)
    store.close()
    print(json.dumps(keys))


if __name__ == "__main__":
    main(*sys.argv[1:])

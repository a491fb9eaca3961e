"""A process with a wrong clock, which calls every method that takes a time, and prints what it saw.

Each line of its input is a JSON array of type, url and table. Its answer is a line with a JSON object of unix seconds,
which a process with a right clock judges, or with the traceback as `error`.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
import traceback
from typing import Any

from psched.backends import open_stores
from psched.clock import boottime
from psched.model import Rule
from psched.store import ScheduleStore, StoreSettings

HOLDER = "host/1/wrong"


def main() -> None:
    for line in sys.stdin:
        try:
            answer = probe(*json.loads(line))
        except Exception:  # noqa: BLE001 – the test shows it
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), flush=True)


def probe(type_: str, url: str, table: str) -> dict[str, Any]:
    store = open_stores(type_, StoreSettings(url=url, holder=HOLDER, schedules=table)).schedules
    assert store is not None
    with contextlib.closing(store):
        return use_every_verb(store)


def use_every_verb(store: ScheduleStore) -> dict[str, Any]:
    """Acquire what is due, and settle each row in another way. Return the times and keys that were seen."""
    claims = {claim.row.key: claim for claim in store.acquire(10, 100)}
    seen: dict[str, Any] = {"node": time.time(), "now": store.now(), "acquired": sorted(claims)}
    seen["lease ends"] = [claim.lease.expires_at for claim in claims.values()]
    extended, released, retried, crashed = (claims.get(f"due{n}") for n in range(4))
    if extended is not None:
        (lease,) = store.extend([extended.lease], 100)
        seen["extended to"] = lease and lease.expires_at
    if released is not None:
        store.release(released.lease, boottime() + 5)
        seen["released at"] = due(store, "due1")
    if retried is not None:
        store.retry(retried.lease, 0, None, boottime() + 5)
        seen["retried at"] = due(store, "due2")
    if crashed is not None:
        store.give_back(HOLDER, ["due0", "due3"], 300)
        seen["given back at"] = due(store, "due3")
    store.add("added", "type", Rule("0 * * * *", "UTC"), 1_600_000_000, 1_600_000_000, {})
    (first, *_) = store.acquire(1, 1)
    seen["taken first"] = first.row.key
    seen["again after"] = wait_for_the_end(store, first.lease.expires_at)
    return seen


def wait_for_the_end(store: ScheduleStore, expires_at: float) -> float:
    """Return the seconds, by the database's clock, from the end of the lease until the row was due again."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if any(claim.row.key == "added" for claim in store.acquire(10, 100)):
            return store.now() - expires_at
        time.sleep(0.02)
    return 1e9


def due(store: ScheduleStore, key: str) -> float:
    row = store.get(key)
    assert row is not None
    return row.next_run_time


if __name__ == "__main__":
    main()

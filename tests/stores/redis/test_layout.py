"""The keys of the present layout. A released version's layout never changes."""

from __future__ import annotations

import re
from collections import defaultdict

from psched.backends.redis import upgrades
from psched.model import NewTask, Policy
from psched.store import ScheduleStore, TaskStore
from psched.store.node_registry import Announcement
from tests.stores.bench import HOURLY, LONG_AGO, Bench, soon
from tests.stores.layout_dumps import check_dump
from tests.stores.queue.bench import QueueBench
from tests.stores.rows import RedisRows


def test_the_keys_of_a_layout_do_not_change_unnoticed(
    bench: Bench, store: ScheduleStore, tasks: QueueBench, queue: TaskStore
) -> None:
    node = Announcement("node", "schedules", "{}", "host", 1, "1.0", "tz", 1)
    bench.add(store, "run", policy=Policy(alert_after=60, owner="o", tags=("t",)))
    bench.add(store, "failed", policy=Policy(max_attempts=3))
    done, failed = store.acquire(2, 100)
    store.advance(done, LONG_AGO + 3600, LONG_AGO + 3600, soon())
    store.retry(failed.lease, 1, "error", soon())
    bench.add(store, "gone", rule=HOURLY)
    store.delete("gone")
    assert store.nodes is not None
    store.nodes.announce(node)
    queue.submit([NewTask("a", "t", {}, user="u", max_running=1), NewTask("b", "t", {}, priority=2)])
    queue.submit([NewTask("c", "t", {"n": 1}, run_at=queue.now() + 1000)])
    held = queue.acquire(2, 100)
    queue.retire(held[0], "finished", None, 1000, soon())
    queue.acquire(1, 100)
    check_dump("redis.txt", keys_of(bench, "schedules") + keys_of(tasks, "queue"))


def keys_of(bench: Bench, kind: str) -> str:
    """Return the names of the keys with a table's prefix, their types, and the fields of hashes, as text.

    The list of wakeups is left out, because it vanishes with its last element.
    """
    rows = bench.rows
    assert isinstance(rows, RedisRows)
    found = defaultdict[str, set[str]](set)
    for name in set(rows.client.scan_iter(f"{rows.prefix}*")) - {f"{rows.prefix}wake"}:
        type_ = rows.client.type(name)
        key = re.sub(r"(?<=^row:|uns:)\w+$", "KEY", name.removeprefix(rows.prefix))
        fields = rows.client.hkeys(name) if type_ == "hash" else ()
        found[f"{key} {type_}"].update(re.sub(r"\d{5,}", "NUMBER", field) for field in fields)
    lines = [f"{key}: {' '.join(sorted(fields))}".rstrip(": ") for key, fields in sorted(found.items())]
    return "\n".join([f"# {kind}, layout {upgrades.layout_text(kind)}", *lines, ""])

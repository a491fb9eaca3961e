"""Another system. It refuses a write whose fence is smaller than the last fence for the same order."""

import sqlite3
from contextlib import closing
from pathlib import Path

FILE = Path(__file__).with_name("warehouse.db")


def reserve(order: int, item: str, fence: int) -> None:
    """Reserve an item for an order. Raises ValueError if the fence is too small."""
    with closing(sqlite3.connect(FILE)) as connection, connection:
        connection.execute("CREATE TABLE IF NOT EXISTS reserved (id INTEGER PRIMARY KEY, item TEXT, fence INTEGER)")
        done = connection.execute(
            "INSERT INTO reserved VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE"
            " SET item = excluded.item, fence = excluded.fence WHERE excluded.fence >= reserved.fence",
            (order, item, fence),
        )
        if done.rowcount == 0:
            raise ValueError(f"order {order}: another worker has written with a higher fence than {fence}")


if __name__ == "__main__":
    with closing(sqlite3.connect(FILE)) as connection:
        [(_, _, fence)] = rows = connection.execute("SELECT * FROM reserved").fetchall()
        print("reserved:", [row[:2] for row in rows])
    try:
        reserve(17, "stool", fence - 1)
    except ValueError as error:
        print("a late write was refused:", error)

"""Take an order: python order.py NUMBER ITEM [--fail]."""

import sqlite3
import sys

import shop

import psched


def main(order: int, item: str, fails: bool) -> None:
    """Write the order and its task in one transaction."""
    connection = sqlite3.connect("psched.db")
    connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT)")
    with psched.open_queue("etc/psched.yml"):
        connection.execute("INSERT INTO orders VALUES (?, ?)", (order, item))
        shop.ship.using(key=f"order-{order}", connection=connection).submit(order=order, item=item)
        if fails:
            connection.rollback()
            sys.exit("out of stock")
        connection.commit()
    connection.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], "--fail" in sys.argv)

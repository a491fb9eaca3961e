"""Nightly reports: one file for each night, named after the occurrence."""

import csv
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import psched

app = psched.App(owner="reports")
HERE = Path(__file__).parent


@app.schedule("30 2 * * *", timezone="Europe/Berlin", data={"region": "north"}, alert_after=3600)
@app.task(max_attempts=5)
def nightly(task: psched.Task, region: str) -> None:
    """Write the report of the night of this occurrence, even if the run is late."""
    night = datetime.fromtimestamp(task.scheduled_time, UTC).date()
    with closing(sqlite3.connect(HERE / "shop.db")) as shop:
        shop.execute("CREATE TABLE IF NOT EXISTS sales (day TEXT, region TEXT, amount INTEGER)")
        sold = "SELECT day, amount FROM sales WHERE region = ? AND day < ?"
        rows = shop.execute(sold, (region, night.isoformat())).fetchall()
    folder = HERE / "out"
    folder.mkdir(exist_ok=True)
    unfinished = folder / f".{night}.{task.fence}"
    with unfinished.open("w", newline="") as file:
        csv.writer(file).writerows([("day", "amount"), *rows])
    unfinished.replace(folder / f"{night}-{region}.csv")  # a reader sees the whole report or none

"""APScheduler 3 with a SQLAlchemy job store: at most once, one process. In the peers' interpreter.

COUNT schedules, either all due in one second (`due-together`) or each alone (`due-alone`).
"""

from __future__ import annotations

import random
import sys
import time
from datetime import UTC, datetime

from apscheduler.schedulers.background import BackgroundScheduler

from tests.bench.tally import Tally, tally_of_environment

_tally: list[Tally] = []


def late(due: float) -> None:
    """Keep how late it is."""
    if not _tally:
        _tally.append(tally_of_environment())
    _tally[0].sample(time.time() - due)
    _tally[0].count()


def main() -> None:
    """Do what the command line says: VERB URL COUNT."""
    verb, url, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    drivers = {"mysql": "mysql+pymysql", "postgresql": "postgresql+psycopg"}
    scheme, _, rest = url.partition("://")
    scheduler = BackgroundScheduler(timezone=UTC, job_defaults={"misfire_grace_time": 60})
    scheduler.add_jobstore("sqlalchemy", url=f"{drivers.get(scheme, scheme)}://{rest}")
    scheduler.start(paused=True)
    first = float(int(time.time()) + 4)
    for number in range(count):
        due = first if verb == "due-together" else first + number * 1.3 + random.uniform(0, 0.9)
        scheduler.add_job("__main__:late", "date", run_date=datetime.fromtimestamp(due, UTC), args=[due])
    scheduler.resume()
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main()

"""APScheduler 3 with a SQLAlchemy or Redis job store: at most once, one process. Runs in the peers' virtualenv.

The verb `add` adds COUNT schedules, and prints how many are added per second. With `due-together`, COUNT schedules are
due in the same second, and COUNT more in a later second. With `due-alone`, COUNT schedules are due one after another.
"""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.cron import CronTrigger

from benchmarks.pauses import pauses
from benchmarks.shared_counter import Tally, tally_of_environment

_tally: list[Tally] = []

_DRIVERS = {"mysql": "mysql+pymysql", "postgresql": "postgresql+psycopg"}
_LEAD = 3.0
"""Seconds from the end of adding schedules to the time of the first schedule."""
_TRIAL = 20
"""How many schedules are added to measure how long one addition takes."""
_FAR = 4_000_000_000.0
_LATER = 3.0
"""Seconds from one burst to the next."""


def late(due: float) -> None:
    """Record how many seconds late the run is. `due`: the run's time, in unix seconds."""
    if not _tally:
        _tally.append(tally_of_environment())
    _tally[0].sample(time.time() - due)
    _tally[0].count()


def _open(url: str) -> Any:
    scheduler = BackgroundScheduler(timezone=UTC, job_defaults={"misfire_grace_time": 60})
    scheme, _, rest = url.partition("://")
    if scheme == "redis":
        at = urlsplit(url)
        scheduler.add_jobstore("redis", host=at.hostname, port=at.port, password=at.password, db=int(at.path[1:] or 0))
    else:
        scheduler.add_jobstore("sqlalchemy", url=f"{_DRIVERS.get(scheme, scheme)}://{rest}")
    scheduler.start(paused=True)
    return scheduler


def _add(scheduler: Any, count: int) -> None:
    begun = time.monotonic()
    for number in range(count):
        trigger = CronTrigger.from_crontab(f"{number % 50} {number // 50 % 2} * * *", UTC)
        scheduler.add_job("__main__:late", trigger, args=[0.0], id=f"schedule-{number:07}")
    print(count / (time.monotonic() - begun))


def _run(scheduler: Any, dues: list[float]) -> None:
    _add_single(scheduler, dues)
    if time.time() > dues[0] - 1:
        raise SystemExit(f"adding {len(dues)} schedules took too long, so the first would run late")
    scheduler.resume()
    while True:
        time.sleep(60)


def _add_single(scheduler: Any, dues: list[float]) -> None:
    for due in dues:
        scheduler.add_job("__main__:late", "date", run_date=datetime.fromtimestamp(due, UTC), args=[due])


def _lead(scheduler: Any, count: int) -> float:
    """Return the seconds until the first schedule may be due. Allows twice the measured time for each addition."""
    begun = time.monotonic()
    _add_single(scheduler, [_FAR] * _TRIAL)
    return _LEAD + 2 * count * (time.monotonic() - begun) / _TRIAL


def _dues(scheduler: Any, verb: str, count: int) -> list[float]:
    together = verb == "due-together"
    due = float(int(time.time() + _lead(scheduler, 2 * count if together else count)))
    if together:
        return [due] * count + [due + _LATER] * count
    dues = []
    for pause in pauses(count):
        due += pause
        dues.append(due)
    return dues


def main() -> None:
    """Execute the command line VERB URL COUNT."""
    verb, url, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    scheduler = _open(url)
    if verb == "add":
        _add(scheduler, count)
        scheduler.shutdown()
    else:
        _run(scheduler, _dues(scheduler, verb, count))


if __name__ == "__main__":
    main()

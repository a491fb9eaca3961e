"""@app.schedule declares schedules beside the functions that handle them."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from psched.application import App
from psched.errors import ConfigError
from psched.model import NewSchedule


def test_schedules_are_declared_above_and_below_a_task() -> None:
    app = App(owner="shop")

    @app.schedule("0 3 * * *", timezone="Europe/Berlin", data={"day": date(2027, 1, 2)}, tags=["x"])
    @app.schedule(every="5m", key="often", owner="market", data={"day": date(2027, 1, 2)})
    @app.task("report")
    @app.schedule(at="2027-03-01T09:00", key="once", data={"day": date(2027, 1, 2)}, max_attempts=3)
    def report(day: date) -> None: ...

    data = {"day": "2027-01-02"}
    market, shop = sorted(app.declared_schedules(), key=lambda each: each.owner)
    assert market.schedules == (NewSchedule("often", "report", "@every 5m", data=data, owner="market"),)
    once, own = shop.schedules
    assert once == NewSchedule("once", "report", "@at 2027-03-01T09:00", data=data, owner="shop", max_attempts=3)
    assert own == NewSchedule(
        "report", "report", "0 3 * * *", timezone="Europe/Berlin", data=data, owner="shop", tags=["x"]
    )
    assert shop.place("once").endswith("report: once")
    assert report.type == "report"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "takes one of cron, every and at, got none"),
        ({"cron": "* * * * *", "every": 5}, "got cron and every"),
        ({"cron": True}, "cron must be text, got True"),
        ({"cron": "* * * * *", "timzone": "UTC"}, "@app.schedule: unknown option 'timzone'; did you mean 'timezone'"),
        ({"cron": "* * * * *", "data": {"x": 1}}, "data: "),
        ({"cron": "* * * * *", "owner": None}, "has no owner"),
    ],
)
def test_a_mistake_is_named(options: dict[str, Any], words: str) -> None:
    app = App()

    @app.task("report")
    def report() -> None: ...

    def declare() -> None:
        app.schedule(**options)(report)
        app.declared_schedules()

    with pytest.raises(ConfigError, match=words):
        declare()


def test_a_schedule_needs_a_task_with_one_type_and_a_key_of_its_own() -> None:
    app = App(owner="shop")

    @app.schedule("* * * * *")
    def alone() -> None: ...

    with pytest.raises(ConfigError, match=r"alone: @app\.schedule is for tasks of the app; add @app\.task"):
        app.declared_schedules()
    app = App(owner="shop")

    @app.schedule("* * * * *")
    @app.schedule("0 * * * *")
    @app.task("report")
    def twice() -> None: ...

    with pytest.raises(ConfigError, match="the schedule of .* has the key 'report', too"):
        app.declared_schedules()
    with pytest.raises(ConfigError, match="owner must be non-empty text"):
        App(owner="")

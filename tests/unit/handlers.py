"""Makes and runs the handlers of an App."""

from __future__ import annotations

from psched.application import App, Handler
from psched.task import Task
from tests.unit.fake_task import Ledger


def handler(app: App, task: Task) -> Handler:
    factory = app.route(task.type)
    assert factory is not None
    return factory(task)


def run(app: App, ledger: Ledger, type_: str = "type1") -> None:
    handler(app, ledger.task(type_)).run()

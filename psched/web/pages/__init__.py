"""The functions of the pages, by their paths. Each takes a request and returns a response."""

from collections.abc import Callable, Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from psched.web.pages import (
    actions,
    bulk_actions,
    doctor,
    edit_schedule,
    nodes,
    now,
    proof,
    schedules,
    simulated_outage,
    tasks,
    week,
    yesterday,
)
from psched.web.shared_state import SharedState

Answer = Callable[[Request, SharedState], Response]

PAGES: Final[Mapping[str, Answer]] = {
    "/": now.now,
    "/schedules": schedules.schedules,
    "/schedule": schedules.schedule,
    "/schedule/edit": edit_schedule.ask,
    "/week": week.week,
    "/yesterday": yesterday.yesterday,
    "/proof": proof.proof,
    "/what-if": simulated_outage.simulated_outage,
    "/queue": tasks.queue,
    "/tasks": tasks.tasks,
    "/task": tasks.task,
    "/tasks/bulk": bulk_actions.ask,
    "/nodes": nodes.nodes,
    "/doctor": doctor.doctor,
}
"""For each path: the function of the page. These pages change nothing."""
PATIENCE: Final[Mapping[str, Callable[[Request], float]]] = {"/proof": proof.patience}
"""For pages with an export: the function that returns for how many more seconds a request may wait."""
ACTIONS: Final[Mapping[str, Answer]] = {
    "/schedule/action": actions.change_schedule,
    "/schedule/edit": edit_schedule.act,
    "/task/action": actions.change_task,
    "/tasks/bulk": bulk_actions.act,
}
"""For each path of a request that changes something: the function. It answers with a redirect to a page."""

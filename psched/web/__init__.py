"""Pages about schedules, tasks and workers: `psched web`, or mounted into an ASGI application.

Server-rendered by Starlette and Jinja; every page works without JavaScript. Answers come from `psched.insight`; what
visitors change goes through `ScheduleCollection` and `Queue`, and is recorded in `psched_actions`.
"""

from psched.web.access import ACTIONS, Access, AccessFunction
from psched.web.application import app

__all__ = ["ACTIONS", "Access", "AccessFunction", "app"]

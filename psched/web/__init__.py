"""Web pages about schedules, tasks and nodes, served by `psched web` or mounted into an ASGI application.

Starlette and Jinja render the pages on the server; every page works without JavaScript. What the pages show comes from
`psched.insight`. Changes by visitors go through `ScheduleCollection` and `Queue`, and are recorded in `psched_actions`.
"""

from psched.web.access import ACTIONS, Access, AccessFunction
from psched.web.application import app

__all__ = ["ACTIONS", "Access", "AccessFunction", "app"]

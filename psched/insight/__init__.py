"""Queries for people: what exists, what has happened, and what is late.

The package opens read-only sessions of its own. On SQL, such a session refuses to write. Without `long_reads` it also
ends a statement after 2 s, and on PostgreSQL it reads tables only by their indexes, as workers do.

Most queries do not read a whole table: counts end at a limit ("10,000+"), and pages end after a number of rows. Only
the forecast, the week ahead, the simulation, and iterators such as `rows`, `history` and `audit` read whole tables,
page by page.
"""

from psched.insight.change_preview import ChangePreview
from psched.insight.forecast import Forecast, HourForecast
from psched.insight.insight import Insight, Overview, open_insight
from psched.insight.nodes import NodeState, merged
from psched.insight.pages import Page
from psched.insight.proof import Proof, ProofPage
from psched.insight.run_stats import Percentiles, RunRates, RunReport, RunsAt
from psched.insight.schedule_insight import NextRun, ScheduleDetails, ScheduleInsight
from psched.insight.simulation import Lateness, SimulatedHour, SimulatedOutage, SimulatedSchedule, Simulation
from psched.insight.task_insight import TaskDetails, TaskInsight
from psched.insight.timeline import Outage, Timeline, TimelineRun
from psched.insight.week_ahead import ClockChange, ClockNote, CrowdedMinute, WeekAhead
from psched.insight.why_waiting import Reason, why_waiting

__all__ = [
    "ChangePreview",
    "ClockChange",
    "ClockNote",
    "CrowdedMinute",
    "Forecast",
    "HourForecast",
    "Insight",
    "Lateness",
    "NextRun",
    "NodeState",
    "Outage",
    "Overview",
    "Page",
    "Percentiles",
    "Proof",
    "ProofPage",
    "Reason",
    "RunRates",
    "RunReport",
    "RunsAt",
    "ScheduleDetails",
    "ScheduleInsight",
    "SimulatedHour",
    "SimulatedOutage",
    "SimulatedSchedule",
    "Simulation",
    "TaskDetails",
    "TaskInsight",
    "Timeline",
    "TimelineRun",
    "WeekAhead",
    "merged",
    "open_insight",
    "why_waiting",
]

"""What a team writes its handlers with, and what loads them: classes (Base, Dispatch) or functions (App)."""

from psched.application.app import App
from psched.application.dispatch import Dispatch
from psched.application.handler import Base, Decider, DefaultDecider, UndefinedDecisionError
from psched.application.loader import ApplicationSpec, load
from psched.application.routing import Application, Handler, Router

__all__ = [
    "App",
    "Application",
    "ApplicationSpec",
    "Base",
    "Decider",
    "DefaultDecider",
    "Dispatch",
    "Handler",
    "Router",
    "UndefinedDecisionError",
    "load",
]

"""Applications: handlers as classes (Base, Dispatch) or as functions (App), and the loader for both."""

from psched.application.app import App
from psched.application.class_router import Dispatch
from psched.application.handler_base import Base, Decider, DefaultDecider, Handler, UndefinedDecisionError
from psched.application.loader import ApplicationSpec, load
from psched.application.ordered_routers import Application
from psched.application.router import Router

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

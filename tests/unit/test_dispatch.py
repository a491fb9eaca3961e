"""A Dispatch finds the handler of a type: the first match counts, and strings are imported late."""

from __future__ import annotations

import re
from typing import Any

import pytest

from psched.application import App, Application, Base, Dispatch
from psched.errors import ConfigError
from tests.unit.fake_task import Ledger


class First(Base):
    """The handler that comes first."""


class Second(Base):
    """The handler that comes second."""

    class Inner(Base):
        """A handler inside another."""


class Sample(Dispatch):
    routes = {  # noqa: RUF012 – as users write it
        "type1": First,
        re.compile(r"^regexp-.*$"): "Second",
        re.compile("any"): First,
        "any.other": Second,
        "inner": "Second.Inner",
        "elsewhere": "psched.handlers.command:CommandHandler",
    }


class Inherited(Sample):
    """Has the routes of its parent."""


def routed(routes: Any) -> type[Dispatch]:
    return type("Made", (Dispatch,), {"routes": routes, "__module__": __name__})


@pytest.mark.parametrize(
    ("type_", "name"),
    [
        ("type1", "First"),
        ("regexp-7", "Second"),
        ("many things", "First"),
        ("any.other", "First"),
        ("inner", "Inner"),
        ("elsewhere", "CommandHandler"),
    ],
)
def test_the_first_route_that_matches_wins(type_: str, name: str) -> None:
    for router in (Sample, Inherited):
        assert getattr(router.route(type_), "__name__", None) == name


def test_a_string_is_looked_up_where_the_routes_stand_not_where_they_are_inherited() -> None:
    elsewhere: Any = type("Elsewhere", (Sample,), {"__module__": "psched.errors"})
    assert elsewhere.route("regexp-7") is Second


@pytest.mark.parametrize("type_", ["type", "type11", "TYPE1", "x-regexp-", ""])
def test_a_string_is_the_whole_type(type_: str) -> None:
    assert Sample.route(type_) is None


def test_what_is_sound_passes_the_check() -> None:
    Sample.check()


@pytest.mark.parametrize(
    ("routes", "message"),
    [
        ({"a": "Frist"}, r"Made.routes\['a'\]: no 'Frist' in .*; did you mean 'First'\?"),
        ({"a": "Second.Iner"}, "no 'Second.Iner' in .*; did you mean 'Inner'"),
        ({"a": "psched.nowhere:X"}, "module 'psched.nowhere' not found"),
        ({"a": "no module:X"}, "'no module' is not a module name"),
        ({"a": "re:compile"}, "must be a subclass of psched.application.Base, got <function compile"),
        ({"a": 7}, "must be a subclass of psched.application.Base, got 7"),
        ({"a": dict}, "must be a subclass of psched.application.Base, got <class 'dict'>"),
        ({7: First}, "a task type must be a non-empty string or a compiled regular expression, got 7"),
        ({"": First}, "a task type must be"),
        ({re.compile(b"a"): First}, "a task type must be"),
    ],
)
def test_a_route_that_leads_nowhere_is_found_by_the_check(routes: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        routed(routes).check()


def test_an_application_asks_its_routers_in_order() -> None:
    app = App()
    app.task(re.compile(""))(lambda task: None)
    ledger = Ledger()
    application = Application((routed({"a": First}), Sample, app))
    names = [type(application.handler(ledger.task(type_))).__name__ for type_ in ("a", "inner", "b")]
    assert names == ["First", "Inner", "FunctionHandler"]


def test_an_application_has_no_handler_for_a_type_nobody_knows() -> None:
    assert Application((Sample,)).handler(Ledger().task("unknown")) is None


class WithoutTask(Base):
    def __init__(self) -> None:
        """Forget the task."""


def test_a_class_that_cannot_be_called_with_a_task_is_refused() -> None:
    expected = r"WithoutTask must take one argument, the task, as in: def __init__\(self, task\)"
    with pytest.raises(ConfigError, match=expected):
        routed({"type1": WithoutTask}).check()

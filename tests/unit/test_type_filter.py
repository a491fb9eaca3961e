"""The types that a worker claims: those that its application routes, restricted by its configuration."""

from __future__ import annotations

import re
from typing import ClassVar

import pytest

from psched.application import App, Base, Dispatch
from psched.application.handler_base import HandlerFactory
from psched.application.ordered_routers import Application
from psched.handlers.command import Command
from psched.handlers.enqueue import Enqueue
from psched.store.type_filter import TypeFilter, mismatch


class Known(Dispatch):
    routes: ClassVar = {"a": Base, re.compile("^b"): Base}


class Guessing(Dispatch):
    @classmethod
    def route(cls, type: str) -> HandlerFactory | None:
        return None


class GuessingApp(App):
    def route(self, type: str) -> HandlerFactory | None:
        return None


def accepted(wanted: TypeFilter) -> str:
    return "".join(type_ for type_ in "abcdx" if wanted.accepts(type_))


def test_all_routers_of_an_application_count() -> None:
    app = App()
    app.task("c")(print)
    app.task(re.compile("d$"))(print)
    wanted = Application((Known, app)).types()
    assert accepted(wanted) == "abcd"
    assert wanted.names == {"a", "c"}
    assert not wanted.is_everything


def test_what_overrides_route_may_take_any_type_unless_it_says_otherwise() -> None:
    for router in (Guessing, GuessingApp()):
        assert Application((Known, router)).types().is_everything

    class Telling(Guessing):
        @classmethod
        def routed_types(cls) -> list[str]:
            return ["x"]

    assert accepted(Application((Telling,)).types()) == "x"


def test_the_ready_made_applications_take_their_own_types_only() -> None:
    wanted = Application((Command, Enqueue)).types()
    for type_ in ("command", "command.x", "enqueue", "enqueue.y"):
        assert wanted.accepts(type_)
    assert not wanted.accepts("commander")


@pytest.mark.parametrize("expression", ["", ".*", "^.*", ".*$"])
def test_an_expression_that_is_found_everywhere_takes_everything(expression: str) -> None:
    wanted = TypeFilter((re.compile(expression),))
    assert wanted.is_everything
    assert all(wanted.accepts(type_) for type_ in ("", "a", "\n", "a\nb", "a\nb\n", "\r\u2028\x00"))


@pytest.mark.parametrize("expression", [".", "^.*$", r"^.*\Z", r"\A.*\Z", r"\A.*$"])
def test_an_expression_that_is_not_found_in_every_text_does_not_take_everything(expression: str) -> None:
    wanted = TypeFilter((re.compile(expression),))
    assert not all(wanted.accepts(type_) for type_ in ("", "a\nb"))
    assert not wanted.is_everything
    assert TypeFilter.decode(wanted.encode()) == wanted


def test_globs_restrict_what_is_routed() -> None:
    assert accepted(TypeFilter(None).serving(["[ab]", "x"])) == "abx"
    assert accepted(TypeFilter(("a", "c")).serving(["[ab]"])) == "a"
    assert TypeFilter(None).serving(["x", "[ab]"]).names == {"x"}
    assert TypeFilter(("a", "c")).serving(["?"]).names == {"a", "c"}
    assert TypeFilter(None).serving(["*"]).is_everything
    assert TypeFilter(None).serving([]).is_everything
    assert not TypeFilter(None).serving(["video.*"]).accepts("Video.cut")


@pytest.mark.parametrize(
    ("globs", "idle"),
    [
        (["a"], None),
        (["a", "bx", "b?", "x*"], None),
        (["a", "x"], "types: x matches no type that the application routes (/^b/, a); correct"),
        (
            ["x", "y"],
            "types: x, y matches no type that the application routes (/^b/, a), so this worker runs",
        ),
    ],
)
def test_a_glob_that_matches_no_routed_type_is_named(globs: list[str], idle: str | None) -> None:
    served = TypeFilter(("a", re.compile("^b"))).serving(globs)
    found = mismatch([served])
    assert (found is None) if idle is None else (found or "").startswith(idle)
    assert served.is_nothing == (idle is not None and "a" not in globs)


def test_a_glob_for_another_section_or_a_catch_all_is_none_too_many() -> None:
    assert mismatch([TypeFilter(("a",)).serving(["a", "b"]), TypeFilter(("b",)).serving(["a", "b"])]) is None
    assert mismatch([TypeFilter(None).serving(["x"])]) is None
    assert mismatch([TypeFilter(("a",))]) is None
    assert "x* matches no type" in (mismatch([TypeFilter(("a",)).serving(["a", "x*"])]) or "")


def test_one_without_routes_takes_nothing() -> None:
    assert accepted(Application(()).types()) == ""


@pytest.mark.parametrize(
    "wanted",
    [TypeFilter(), TypeFilter(("a", re.compile("B", re.IGNORECASE)), ("[a-z]",)), TypeFilter((), ("ä",))],
)
def test_another_process_reads_it_as_it_was(wanted: TypeFilter) -> None:
    assert TypeFilter.decode(wanted.encode()) == wanted
    with pytest.raises(ValueError, match="expected a stored type filter"):
        TypeFilter.decode('{"routes": 1}')

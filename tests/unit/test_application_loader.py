"""The loader finds applications by name. If it cannot, it says why in one line."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from psched.application import App, Application, ApplicationSpec, Dispatch, load
from psched.errors import ConfigError
from tests.unit.fake_task import Ledger

Write = Callable[..., str]

APP = """
import re
from psched.application import App, Base, Dispatch

class Handler(Base):
    def perform(self):
        self.task.finish()

class Jobs(Dispatch):
    routes = {"job": "Handler"}

app = App()

@app.task(re.compile("^f"))
def function(task):
    return None
"""


@pytest.fixture(autouse=True)
def imports_of_the_test_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the import path and the loaded modules after the test."""
    before = dict(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    for name in set(sys.modules) - set(before):
        del sys.modules[name]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A function that writes a file in the test's folder and returns its path."""

    def write(name: str, text: str = APP) -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return str(path)

    return write


def handler_name(application: Application, type_: str) -> str:
    return type(application.handler(Ledger().task(type_))).__name__


def refused(spec: ApplicationSpec) -> str:
    """Load an application that must be refused. Return the message, which must be one line."""
    with pytest.raises(ConfigError) as caught:
        load(spec)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_name_with_its_module_is_found_in_an_included_folder(write: Write, tmp_path: Path) -> None:
    write("team_jobs.py")
    application = load(ApplicationSpec(("team_jobs:Jobs",), include=(str(tmp_path),)))
    assert handler_name(application, "job") == "Handler"


def test_the_first_included_folder_comes_first(write: Write, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        write(f"{folder}/team_jobs.py", f"{APP}\nname = '{folder}'\n")
    load(ApplicationSpec(("team_jobs:Jobs",), include=(str(tmp_path / "two"), str(tmp_path / "one"))))
    assert sys.modules["team_jobs"].name == "two"


def test_a_file_is_loaded_by_its_path(write: Write) -> None:
    application = load(ApplicationSpec(("Jobs",), require=(write("team_jobs.py"),)))
    assert handler_name(application, "job") == "Handler"


@pytest.mark.parametrize("name", ["team_jobs:Jobs", "{path}:Jobs", "Jobs"])
def test_what_a_file_defines_is_known_by_its_stem_and_its_path(name: str, write: Write) -> None:
    path = write("team_jobs.py")
    application = load(ApplicationSpec((name.format(path=path),), require=(path,)))
    assert handler_name(application, "job") == "Handler"


def test_a_file_may_be_named_without_being_required(write: Write) -> None:
    application = load(ApplicationSpec((f"{write('team_jobs.py')}:app",)))
    assert handler_name(application, "f1") == "FunctionHandler"


def test_a_relative_path_begins_at_the_working_directory(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("team_jobs.py")
    monkeypatch.chdir(tmp_path)
    assert handler_name(load(ApplicationSpec(("Jobs",), require=("team_jobs.py",))), "job") == "Handler"


def test_a_file_named_like_a_module_of_python_hides_nothing(write: Write) -> None:
    path = write("calendar.py")
    write("colorsys.py")
    application = load(ApplicationSpec(("calendar:Jobs",), require=(path,)))
    assert handler_name(application, "job") == "Handler"
    assert hasattr(importlib.import_module("calendar"), "monthrange")
    assert hasattr(importlib.import_module("colorsys"), "rgb_to_hsv")


def test_a_file_finds_its_neighbours(write: Write) -> None:
    write("team_neighbour.py")
    path = write("team_jobs.py", "from team_neighbour import Jobs")
    assert handler_name(load(ApplicationSpec(("Jobs",), require=(path,))), "job") == "Handler"


def test_a_file_is_loaded_once(write: Write) -> None:
    spec = ApplicationSpec(("app",), require=(write("team_jobs.py"),))
    assert load(spec).routers[0] is load(spec).routers[0]


def test_a_bare_name_is_looked_up_in_the_required_modules_last_first(write: Write) -> None:
    paths = [write(f"team_{name}.py") for name in ("first", "last")]
    [router] = load(ApplicationSpec(("Jobs",), require=tuple(paths))).routers
    assert router is sys.modules["team_last"].Jobs


def test_several_names_are_asked_in_their_order(write: Write) -> None:
    require = ("psched.handlers.command", write("team_jobs.py"))
    application = load(ApplicationSpec(("Command", "app", "Jobs"), require=require))
    names = [handler_name(application, type_) for type_ in ("command", "f", "job")]
    assert names == ["CommandHandler", "FunctionHandler", "Handler"]


def test_what_is_imported_already_is_taken_as_it_is() -> None:
    class Mine(Dispatch):
        """Routes nothing."""

    app = App()
    app.task("type1")(lambda task: None)
    assert load(ApplicationSpec((Mine, app))).routers == (Mine, app)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (ApplicationSpec(), "no application given; name one (`module:NAME`)"),
        (ApplicationSpec(("nowhere.jobs:Jobs",)), "module 'nowhere.jobs' not found (searched "),
        (ApplicationSpec(("psched.nowhere:Jobs",)), "module 'psched.nowhere' not found (searched "),
        (ApplicationSpec(("Jobs",), require=("nowhere",)), "add its folder with -I or `include:`"),
        (ApplicationSpec(("no module:Jobs",)), "'no module' is not a module name; expected `pkg.mod`"),
        (ApplicationSpec((".jobs:Jobs",)), "'.jobs' is not a module name"),
        (ApplicationSpec(("jobs:",)), "'jobs:' is not the name of an application; expected `module:NAME`"),
        (ApplicationSpec(("",)), "'' is not the name of an application"),
        (ApplicationSpec(("Jobs",)), "'Jobs' names no module; write `module:Jobs`, or name its module by -r"),
        (ApplicationSpec(("team.jobs.app",)), "'team.jobs.app' names no module; write `team.jobs:app`, or name"),
        (ApplicationSpec(("psched.handlers.command:Comand",)), "no 'Comand' in psched.handlers.command; did you mean"),
        (
            ApplicationSpec(("command",), require=("psched.handlers.command", "psched.errors")),
            "no 'command' in psched.errors, psched.handlers.command; did you mean 'Command'?",
        ),
        (ApplicationSpec(("re:compile",)), "re:compile is neither a Dispatch subclass nor an App, but <function"),
        (ApplicationSpec(("psched.handlers.command:CommandHandler",)), "is neither a Dispatch subclass nor an App"),
        (ApplicationSpec((App,)), "is neither a Dispatch subclass nor an App"),
        (ApplicationSpec((App(),)), "the App handles no task"),
        (
            ApplicationSpec(("x:y",), include=("/nowhere/at/all",)),
            "include (-I): '/nowhere/at/all' does not exist; expected a folder",
        ),
        (ApplicationSpec(("Jobs",), require=("/nowhere/jobs.py",)), "there is no file '/nowhere/jobs.py' to load"),
    ],
)
def test_what_cannot_be_found_is_named_with_the_remedy(spec: ApplicationSpec, message: str) -> None:
    assert message in refused(spec)


def test_only_applications_are_proposed_in_place_of_a_missing_one() -> None:
    """The module also has the public name `Mapping`, which is closer."""
    message = refused(ApplicationSpec(("psched.handlers.command:app",)))
    assert message == "no 'app' in psched.handlers.command"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ndef (", "{path}:2: invalid syntax"),
        ("import nowhere_at_all", "ModuleNotFoundError: No module named 'nowhere_at_all' ({path}:1)"),
        ("\n1 / 0", "ZeroDivisionError: division by zero ({path}:2)"),
        ("raise ValueError('a\\nb')", "ValueError: a b ({path}:1)"),
        ("import sys\nsys.exit('bye')", "SystemExit: bye ({path}:2)"),
        (
            "from psched.application import App\napp = App()\napp.task(7)",
            "a task type must be a non-empty string or a compiled regular expression, got 7 ({path}:3)",
        ),
    ],
)
@pytest.mark.parametrize("by_file", [True, False])
def test_what_fails_while_it_is_imported_is_reported_with_its_line(
    text: str, message: str, by_file: bool, write: Write, tmp_path: Path
) -> None:
    path = write("team_broken.py", text)
    required = path if by_file else "team_broken"
    spec = ApplicationSpec(("app",), include=(str(tmp_path),), require=(required,))
    assert refused(spec) == f"cannot import {required!r}: {message.format(path=path)}"


def test_the_original_error_is_the_cause(write: Write) -> None:
    with pytest.raises(ConfigError) as caught:
        load(ApplicationSpec(("app",), require=(write("team_broken.py", "1 / 0"),)))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_file_that_failed_may_be_loaded_again(write: Write) -> None:
    path = write("team_broken.py", "1 / 0")
    spec = ApplicationSpec(("Jobs",), require=(path,))
    refused(spec)
    write("team_broken.py")
    assert handler_name(load(spec), "job") == "Handler"


def test_a_route_that_leads_nowhere_is_found_when_loading(write: Write) -> None:
    path = write("team_jobs.py", APP.replace('"Handler"}', '"Handlr"}'))
    message = refused(ApplicationSpec(("Jobs",), require=(path,)))
    assert message == "Jobs: Jobs.routes['job']: no 'Handlr' in team_jobs; did you mean 'Handler'?"


@pytest.mark.parametrize("name", ["calendar.txt", "notes"])
def test_what_is_no_python_file_is_refused(name: str, write: Write) -> None:
    assert "its name must end with .py" in refused(ApplicationSpec(("x",), require=(write(name),)))


def test_keyboard_interrupts_pass_through(write: Write) -> None:
    path = write("team_slow.py", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load(ApplicationSpec(("app",), require=(path,)))

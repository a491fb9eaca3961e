"""The built wheel, installed into a virtualenv: its metadata, its commands, and the types that users see."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from tests.programs import ROOT

pytestmark = pytest.mark.timeout(180)
"""The build takes two seconds and each type checker ten, if nothing else runs on the machine."""

_HERE = Path(__file__).parent
_CORRECT = sorted(_HERE.glob("correct_*.py"))
_WRONG = _HERE / "wrong_program.py"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtualenv with the wheel. psched's dependencies come from the virtualenv of the tests."""
    folder = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder)
    made = folder / "venv"
    venv.create(made)
    packages = next(made.glob("lib/python*/site-packages"))
    libraries = next(path for path in sys.path if (Path(path) / "attrs").is_dir())
    (packages / "libraries.pth").write_text(f"{libraries}\n")  # which has psched by a .pth file, not followed from here
    [wheel] = folder.glob("psched-*.whl")
    _run(sys.executable, "-m", "pip", "--python", made / "bin" / "python", "install", "--no-deps", "--no-index", wheel)
    return made


def test_the_wheel_has_license_authors_types_and_scripts(installed: Path) -> None:
    [packages] = installed.glob("lib/python*/site-packages")
    [folder] = packages.glob("psched-*.dist-info")
    metadata = PathDistribution(folder).metadata
    assert (metadata["License-Expression"], metadata["Author"]) == ("Apache-2.0", "The psched authors")
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    assert "The psched authors" in (folder / "licenses" / "LICENSE").read_text()
    assert (packages / "psched" / "py.typed").exists()
    assert list(packages.glob("psched/backends/redis/scripts/*.lua"))


def test_the_commands_of_the_wheel_run(installed: Path, tmp_path: Path) -> None:
    assert str(installed) in _run(installed / "bin/python", "-c", "import psched; print(psched.__file__)", cwd=tmp_path)
    assert _run(installed / "bin/psched", "--version", cwd=tmp_path).startswith("psched, version ")
    assert _run(installed / "bin/pschedd", "--version", cwd=tmp_path).startswith("pschedd, version ")
    (tmp_path / "psched.yml").write_text("development: {type: rdb, url: 'sqlite:///psched.db'}")
    _run(installed / "bin/psched", "-c", "psched.yml", "init", cwd=tmp_path)
    assert _run(installed / "bin/psched", "-c", "psched.yml", "--json", "list", cwd=tmp_path) == "[]\n"


@pytest.fixture(scope="module")
def project(installed: Path) -> Path:
    """The folder of a user's project, which contains no sources of psched."""
    folder = installed.parent / "project"
    folder.mkdir()
    for program in (*_CORRECT, _WRONG):
        shutil.copy(program, folder)
    return folder


@pytest.mark.in_suite_on("pyright")
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_type_checker_accepts_a_users_program_and_finds_its_mistakes(
    checker: str, installed: Path, project: Path
) -> None:
    found = defaultdict(list)
    for file, line, message in _CHECKERS[checker](installed, project):
        found[file].append(f"{line}: {message}")
    assert found.keys() == {_WRONG.name}, found
    assert {int(text.partition(":")[0]) for text in found[_WRONG.name]} == _wrong_lines(), found


def _wrong_lines() -> set[int]:
    return {number for number, line in enumerate(_WRONG.read_text().splitlines(), 1) if line.endswith("# wrong")}


def _mypy(installed: Path, project: Path) -> Iterator[tuple[str, int, str]]:
    """Yield the file, line and message of each error of `mypy --strict`."""
    options = ("--strict", "--python-executable", installed / "bin/python", "--output=json")
    for line in _run(sys.executable, "-m", "mypy", *options, ".", cwd=project, succeeds=False).splitlines():
        error = json.loads(line)
        yield Path(error["file"]).name, error["line"], error["message"]


def _pyright(installed: Path, project: Path) -> Iterator[tuple[str, int, str]]:
    """Yield the file, line and message of each error of pyright in strict mode."""
    options = {"typeCheckingMode": "strict", "venvPath": str(installed.parent), "venv": installed.name}
    (project / "pyrightconfig.json").write_text(json.dumps(options))
    output = _run(sys.executable, "-m", "pyright", "--project", project, "--outputjson", cwd=project, succeeds=False)
    for error in json.loads(output)["generalDiagnostics"]:
        yield Path(error["file"]).name, error["range"]["start"]["line"] + 1, error["message"]


_CHECKERS = {"mypy": _mypy, "pyright": _pyright}


def _run(*words: object, cwd: Path = ROOT, succeeds: bool = True) -> str:
    done = subprocess.run([str(word) for word in words], cwd=cwd, capture_output=True, text=True, check=False)
    assert not succeeds or done.returncode == 0, done.stdout + done.stderr
    return done.stdout

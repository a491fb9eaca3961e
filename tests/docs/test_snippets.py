"""Every command and snippet of the documents is run, or says why it is not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from faultlab.laboratory import Lab
from faultlab.mariadb import MariaDB
from faultlab.postgresql import PostgreSQL
from faultlab.servers import Server
from psched.config import from_mapping, load
from psched.schedules.collection import open_schedules
from tests.docs.snippets import Snippet, snippets
from tests.programs import ROOT, install_forked_programs, install_programs

_EXAMPLES = sorted((ROOT / "examples").rglob("README.md"))
"""The README of each example, which describes the programs in its folder."""
_DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")), *_EXAMPLES]
_BLOCKS = [snippet for document in _DOCUMENTS for snippet in snippets(document)]
_PLAIN = {"text", "mermaid", "ini"}
_ACTIONS = {"run", "file", "load", "on", "norun", "machine", "guide"}


@pytest.mark.parametrize("snippet", _BLOCKS, ids=str)
def test_every_block_says_how_it_is_tested(snippet: Snippet) -> None:
    is_directive = snippet.language.startswith("{")  # of Sphinx
    assert is_directive or snippet.language in _PLAIN or snippet.action in _ACTIONS, snippet.text
    assert snippet.action not in {"file", "load", "on", "norun", "guide"} or snippet.argument, snippet.text


@pytest.mark.parametrize("document", _DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_the_commands_of_a_document_work_one_after_the_other(document: Path, tmp_path: Path) -> None:
    environment = _environment(tmp_path, forked="PYTHONPATH" not in document.read_text())
    work = tmp_path / "work"
    if document in _EXAMPLES:
        shutil.copytree(document.parent, work)
    else:
        work.mkdir()
    for snippet in snippets(document):
        if snippet.action == "file":
            file = work / snippet.argument
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(snippet.text)
        if snippet.action == "run":
            _run(snippet, work, environment)


@pytest.mark.parametrize("snippet", [block for block in _BLOCKS if block.action == "file"], ids=str)
def test_a_reader_in_the_checkout_writes_over_none_of_its_files(snippet: Snippet) -> None:
    assert not (ROOT / snippet.argument).exists()


@pytest.mark.parametrize("snippet", [block for block in _BLOCKS if block.action == "load"], ids=str)
def test_a_configuration_is_accepted(snippet: Snippet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSCHED_DATABASE_PASSWORD", "secret")
    config = tmp_path / "psched.yml"
    config.write_text(snippet.text)
    config.with_name("environment").write_text("PSCHED_DATABASE_PASSWORD=secret\n")
    settings = load(config, snippet.argument)
    assert settings.sections


@pytest.mark.parametrize("kind", [MariaDB, PostgreSQL])
def test_the_statements_for_a_server_make_a_database_that_psched_can_use(kind: type[Server], lab: Lab) -> None:
    blocks = [block for block in _BLOCKS if (block.action, block.argument) == ("on", kind.name.lower())]
    with lab.private(kind) as server:
        for statement in [_WITHOUT_PSCHED[kind.name], *(line for block in blocks for line in block.text.split(";"))]:
            if statement.strip():
                _execute(server, statement)
        section = from_mapping({"type": "rdb", "url": server.url("psched")}).sections[0]
        with open_schedules(section, "documents") as schedules:
            schedules.store.create_tables()
            assert not schedules["key"].exists()


_WITHOUT_PSCHED = {"MariaDB": "DROP USER psched@'127.0.0.1'", "PostgreSQL": "DROP ROLE psched"}
"""Statements that drop the user psched, which the laboratory's servers create."""


def _execute(server: Server, statement: str) -> None:
    assert isinstance(server, MariaDB | PostgreSQL)
    with server.admin() as administrator:
        administrator.execute(statement)


def _environment(folder: Path, forked: bool) -> dict[str, str]:
    """Return environment variables by which `psched` and `pschedd` are this checkout's programs.

    `forked`: the programs are forked, which is quicker, and have this process's import path.
    """
    (install_forked_programs if forked else install_programs)(folder / "bin")
    path = f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(folder)}


def _run(snippet: Snippet, folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        ["bash", "-euc", snippet.text],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, f"{snippet}: {snippet.text}\n{done.stdout}{done.stderr}"

"""docs/api.md has every public name with its docstring, and the documents have an example of each name."""

from __future__ import annotations

import inspect
import re
import runpy
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.docs.snippets import snippets
from tests.programs import ROOT

_SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "api-reference"))
_MODULES: tuple[str, ...] = _SCRIPT["MODULES"]
_DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_PROGRAMS = sorted((ROOT / "examples").rglob("*.py"))
_EXAMPLES = [
    *(block.text for document in _DOCUMENTS for block in snippets(document) if block.action == "file"),
    *(program.read_text() for program in _PROGRAMS),
]
"""The programs in the documents and in examples/, which other tests run."""
_NAMES = [(module, name) for module in _MODULES for name in _SCRIPT["public_names"](module)]


def test_the_reference_is_what_the_docstrings_say() -> None:
    assert (ROOT / "docs" / "api.md").read_text() == _SCRIPT["reference"](), "run scripts/format"


@pytest.mark.parametrize(("module", "name"), _NAMES)
def test_a_public_name_has_an_example_that_is_run(module: str, name: str) -> None:
    used = re.compile(rf"\bpsched\.{name}\b" if module == "psched" else rf"\b{name}\b")
    assert any(used.search(text) and module in text for text in _EXAMPLES), "use it in docs/api-examples.md"


@pytest.mark.parametrize(("module", "name"), _NAMES)
def test_a_public_name_and_its_methods_have_docstrings(module: str, name: str) -> None:
    value = getattr(import_module(module), name)
    if inspect.isclass(value) or inspect.isroutine(value):
        assert _SCRIPT["docstring"](value)
    if inspect.isclass(value):
        missing = [method for method, found in _SCRIPT["members"](value) if not _SCRIPT["docstring"](found)]
        assert not missing


def test_every_module_that_the_documents_import_is_in_the_reference() -> None:
    """The only exception is `psched.store`, which programs with a store of their own import.

    Its docstrings are the contract.
    """
    programs = [program for program in _PROGRAMS if "plugin_store" not in program.parts]
    imported = {module for file in (*_DOCUMENTS, *programs) for module in _imported(file)}
    assert imported <= set(_MODULES)


def _imported(document: Path) -> set[str]:
    """Return the modules of psched that the document's programs import."""
    return set(re.findall(r"^ *(?:from|import) (psched[\w.]*)", document.read_text(), re.MULTILINE))

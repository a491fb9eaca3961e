"""The pages of the site that scripts/docs builds: each is in a table of contents, and no link is broken."""

from __future__ import annotations

import ast
import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from pkgutil import resolve_name

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.docs.snippets import snippets
from tests.programs import ROOT

_DOCS = ROOT / "docs"
_PAGES = sorted(_DOCS.rglob("*.md"))
_LINKING = [*sorted(ROOT.glob("*.md")), *_PAGES]
_PARSER = MarkdownIt("commonmark").enable("table")


def test_every_page_is_in_exactly_one_table_of_contents() -> None:
    index = _DOCS / "index.md"
    contents = [block.text for block in snippets(index) if block.language == "{toctree}"]
    names = [line for text in contents for line in text.splitlines() if line and not line.startswith(":")]
    pages = [
        page.relative_to(_DOCS).with_suffix("").as_posix() for page in (*_PAGES, *_DOCS.rglob("*.rst")) if page != index
    ]
    assert sorted(names) == sorted(pages), "list a new page in a {toctree} of docs/index.md"


@pytest.mark.parametrize("page", _LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_within_the_project_leads_somewhere(page: Path) -> None:
    broken = [target for target in _targets(page) if not _exists(page, target)]
    assert not broken


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_of_the_site_links_to_markdown_outside_of_it(page: Path) -> None:
    outside = [t for t in _targets(page) if t.endswith(".md") and not (page.parent / t).resolve().is_relative_to(_DOCS)]
    assert not outside, "Sphinx cannot resolve these"


def test_every_page_that_a_message_or_docstring_names_exists() -> None:
    named = {
        (file, found)
        for folder in ("psched", "scripts", "etc", "systemd", "examples", "contrib")
        for file in (ROOT / folder).rglob("*")
        if file.is_file() and file.suffix != ".pyc"
        for found in re.findall(r"\bdocs/[\w/-]+\.md(?:#[\w-]+)?", file.read_text(errors="replace"))
    }
    assert {(file, name) for file, name in named if not _exists(ROOT / "README.md", name)} == set()
    assert named


@pytest.mark.parametrize("extension", sorted(_DOCS.glob("_extensions/*.py")), ids=lambda path: path.stem)
def test_every_name_of_psched_that_an_extension_of_the_site_imports_exists(extension: Path) -> None:
    imports = [node for node in ast.walk(ast.parse(extension.read_text())) if isinstance(node, ast.ImportFrom)]
    named = [
        (node.module, each.name) for node in imports for each in node.names if str(node.module).startswith("psched")
    ]
    missing = [name for name in named if not _can_be_imported(*name)]
    assert named and not missing


def _can_be_imported(module: str, name: str) -> bool:
    """Return whether `from module import name` works."""
    try:
        resolve_name(f"{module}.{name}")
    except (ImportError, AttributeError):
        return False
    return True


def _targets(page: Path) -> list[str]:
    """Return the targets of the links and pictures of a page, without those on other sites."""
    tokens = [child for token in _tokens(page) for child in token.children or ()]
    targets = [str(token.attrs.get("href") or token.attrs.get("src") or "") for token in tokens]
    return [target for target in targets if target and not re.match(r"[a-z]+:", target)]


def _exists(page: Path, target: str) -> bool:
    name, _, anchor = target.partition("#")
    path = (page.parent / name).resolve() if name else page
    return path.exists() and (not anchor or path.suffix != ".md" or anchor in _anchors(path))


@cache
def _anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, as GitHub and MyST make them."""
    tokens = _tokens(page)
    found: list[str] = []
    for heading, content in pairwise(tokens):
        if heading.type == "heading_open":
            text = "".join(child.content for child in content.children or () if child.type in ("text", "code_inline"))
            slug = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
            found.append(slug if slug not in found else f"{slug}-{found.count(slug)}")
    return frozenset(found)


@cache
def _tokens(page: Path) -> list[Token]:
    return _PARSER.parse(page.read_text(encoding="utf-8"))

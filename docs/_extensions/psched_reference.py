"""The directive `psched-reference`: pages that are made from the code when the site is built.

Its argument, `settings`, `metrics` or `tables`, names the function below that returns their Markdown.
"""

from __future__ import annotations

import inspect
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import click
import sqlalchemy as sa
from docutils import nodes
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from psched.backends.rdb import delivery_watermarks, node_registry, outbox, run_stats, visitor_actions
from psched.backends.rdb import schema as rdb
from psched.backends.sql import ledger, run_output
from psched.config import from_mapping
from psched.config.settings import Section, Settings
from psched.exporter import families
from psched.metrics.counter_file import Counters
from psched.metrics.health import NodeHealth
from psched.queue.queue import open_queue
from psched.retry_wait import Backoff
from psched.schedules.collection import open_schedules

_ROOT = Path(__file__).parents[2]
_KEY = re.compile(r"  #?(\w+):(?: .*)?")
_REQUIRED = ("type", "url")
_GROUP = re.compile(r"  # ---- (.+?) -+")


def settings() -> str:
    """Return a table of each key of the configuration, described by the comments of etc/psched.example.yml."""
    own, shared = (_section(type_) for type_ in ("rdb", "rdb_compat"))
    groups = dict(_described_keys())
    missing = set(_defaults(own)) - {key for keys in groups.values() for key in keys}
    if missing:
        raise ValueError(f"etc/psched.example.yml does not describe {', '.join(sorted(missing))}")
    lines: list[str] = []
    for group, keys in groups.items():
        lines += [f"## {group}", "", "| key | default | |", "|---|---|---|"]
        for key, text in keys.items():
            default = "required" if key in _REQUIRED else _default(_defaults(own).get(key))
            compat = _default(_defaults(shared).get(key))
            if compat != default and key not in _REQUIRED:
                default += f"; {compat} on `rdb_compat`"
            lines.append(f"| `{key}` | {default} | {_cell(text)} |")
        lines.append("")
    return "\n".join(lines)


def _section(type_: str) -> Settings:
    return from_mapping({"type": type_, "url": "sqlite:///psched.db"})


def _defaults(made: Settings) -> dict[str, Any]:
    """Return the values of all keys, those of sections first."""
    section = made.schedules
    assert section is not None
    found = {each.name: getattr(section, each.name) for each in attrs.fields(Section)}
    found |= {each.name: getattr(made, each.name) for each in attrs.fields(Settings)}
    return {key: value for key, value in found.items() if key not in ("environment", "path")}


def _default(value: Any) -> str:
    match value:
        case None | ():
            return "–"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}" if value < 1e6 else f"{value:.0f}"
        case Backoff():
            return f"{value.first:g} s, doubling to {value.limit:g} s"
        case int() | str():
            return str(value)
        case _:
            return "–"


def _described_keys() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each group of keys in the example, with the comment above each of its keys."""
    text = (_ROOT / "etc" / "psched.example.yml").read_text(encoding="utf-8").partition("\nproduction:\n")[2]
    group, keys, comment = "Variables", dict[str, str](), list[str]()
    last = ""
    for line in text.splitlines():
        if found := _GROUP.fullmatch(line):
            yield group, keys
            group, keys, comment = found[1], {}, []
        elif found := _KEY.fullmatch(line):
            last = " ".join(comment) or last  # a comment describes all keys below it
            keys[found[1]] = last
            comment = []
        elif line.startswith("  # "):
            comment.append(line.removeprefix("  # ").strip())
        elif not line:
            comment = []
    yield group, keys


def metrics() -> str:
    """Return a table of the metrics of `psched exporter`."""
    counters = Counters((), {})
    found = (
        *families._node_families(NodeHealth(masters=(1,))),
        *families._run_families(counters),
        *families._event_families(counters),
        *families._database_families(()),
    )
    lines = ["| metric | type | labels | |", "|---|---|---|---|"]
    for family in found:
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        labels = ", ".join(f"`{label}`" for label in getattr(family, "_labelnames", ()))
        lines.append(f"| `{family.name}{suffix}` | {family.type} | {labels} | {_cell(family.documentation)} |")
    return "\n".join(lines)


_MADE_BY: dict[str, Callable[..., sa.Table]] = {
    "psched_schedules": rdb.schedules_table,
    "psched_schedules_failures": rdb.failures_table,
    "psched_queue": rdb.queue_table,
    "psched_queue_users": rdb.users_table,
    "psched_schedules_ledger": ledger.ledger_table,
    "psched_schedules_changes": ledger.changes_table,
    "psched_schedules_output": run_output.output_table,
    "psched_schedules_calendars": rdb.calendars_table,
    "psched_schedules_outbox": outbox.outbox_table,
    "psched_queue_outbox": outbox.outbox_table,
    "psched_schedules_watermarks": delivery_watermarks.watermarks_table,
    "psched_queue_watermarks": delivery_watermarks.watermarks_table,
    "psched_nodes": node_registry.nodes_table,
    "psched_stats": run_stats.stats_table,
    "psched_actions": visitor_actions.actions_table,
}
"""The functions whose docstrings describe the tables."""


def tables() -> str:
    """Return the tables that `psched init` makes on SQLite, with their columns and indexes."""
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/psched.db"
        made = from_mapping({"type": "rdb", "url": url, "schedules": {}, "queue": {}})
        assert made.schedules and made.queue
        with open_schedules(made.schedules, "docs") as schedules, open_queue(made.queue, "docs") as queue:
            schedules.store.create_tables()
            queue.store.create_tables()
        engine = sa.create_engine(url)
        inspector = sa.inspect(engine)
        for name in inspector.get_table_names():
            lines += [
                f"## {name}",
                "",
                *_docstring(name),
                "",
                "| column | type | null | default |",
                "|---|---|---|---|",
            ]
            key = inspector.get_pk_constraint(name)["constrained_columns"]
            for column in inspector.get_columns(name):
                null = "yes" if column["nullable"] else "no"
                default = column["default"]
                shown = "" if default is None else f"`{default}`"
                lines.append(f"| `{column['name']}` | {column['type']} | {null} | {shown} |")
            lines += ["", f"Primary key: {_names(key)}.", ""]
            for index in sorted(inspector.get_indexes(name), key=lambda each: str(each["name"])):
                condition = index.get("dialect_options", {}).get("sqlite_where")
                where = "" if condition is None else f", of rows with `{condition}`"
                lines.append(f"- index `{index['name']}`: {_names(index['column_names'])}{where}")
            lines.append("")
        engine.dispose()
    return "\n".join(lines)


def _docstring(table: str) -> list[str]:
    """Return what the function that makes a table says of its columns, without what it says of the function."""
    made_by = _MADE_BY.get(table)
    text = "" if made_by is None else inspect.getdoc(made_by) or ""
    summary, _, rest = text.partition("\n\n")
    title = re.sub(r"^Return the table (of|with|that) ", lambda found: f"The table {found[1]} ", summary)
    return [title.partition(" Raises ")[0], "", rest] if title.startswith("The ") else ["", rest]


def _names(columns: Any) -> str:
    return ", ".join(f"`{column}`" for column in columns)


def _cell(text: str) -> str:
    """Return Markdown for a cell of a table: URLs as they are written, and links to the pages that are named."""
    escaped = re.sub(r"([|*_<>\[\]])", r"\\\1", text)
    escaped = re.sub(r"\b\w+://[^\s,)]+", lambda found: f"`{found[0].replace(chr(92), '')}`", escaped)
    return re.sub(r"\bdocs/([\w-]+\.md(#[\w-]+)?)", r"[\1](../\1)", escaped)


class Reference(SphinxDirective):
    """`psched-reference`: the Markdown that a function above returns, as a part of the page."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        made = {"settings": settings, "metrics": metrics, "tables": tables}[self.arguments[0]]
        found: list[nodes.Node] = self.parse_text_to_nodes(made(), allow_section_headings=True)
        return found


def _literal(app: Sphinx, context: click.Context, lines: list[str]) -> None:
    """Let sphinx-click show the help of a command as it is written: stars, and `words` as code."""
    for number, line in enumerate(lines):
        if not line.lstrip().startswith(".. "):
            lines[number] = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", line.replace("*", r"\*"))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive, and show mermaid's diagrams as text: its program would have to be fetched."""
    app.add_directive("psched-reference", Reference)
    app.connect("sphinx-click-process-description", _literal)
    app.connect("sphinx-click-process-options", _literal)
    app.add_lexer("mermaid", TextLexer)
    return {"parallel_read_safe": True}

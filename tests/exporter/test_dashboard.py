"""The dashboard for Grafana has the format that Grafana imports, and uses only metrics that the exporter writes."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faultlab.prerequisites import find
from tests.exporter.test_families import full, master, path, samples

__all__ = ["master", "path"]

DASHBOARD: dict[str, Any] = json.loads((Path(__file__).parents[2] / "contrib/grafana/psched.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]


def expressions() -> Iterator[str]:
    for panel in PANELS:
        for target in panel.get("targets", []):
            yield target["expr"]


def test_the_dashboard_asks_for_metrics_and_labels_that_the_exporter_writes(master: Any, path: Path) -> None:
    written = samples(full(master, path))
    known = {line.partition("{")[0] for line in written}
    queries = [each["definition"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]
    asked = {name for text in (*expressions(), *queries) for name in re.findall(r"psched_\w+", text)}
    assert len(asked) >= 15
    assert asked <= known
    labels = {name for line in written for name in re.findall(r"(\w+)=", line)} | {"job", "instance"}
    used = {name for text in expressions() for name in re.findall(r'(\w+)(?:=~|!=|=)"', text)}
    assert used <= labels


def test_the_dashboard_has_the_shape_that_grafana_imports() -> None:
    assert (DASHBOARD["id"], DASHBOARD["title"]) == (None, "psched"), "with an id Grafana looks for an old dashboard"
    assert DASHBOARD["schemaVersion"] >= 36
    variables = {each["name"] for each in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$(?:\{(\w+)\}|(\w+))", json.dumps([PANELS, DASHBOARD["templating"]])))
    assert {name for pair in used for name in pair if name and not name.startswith("__")} <= variables
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    cells = [cell for panel in PANELS for cell in covered(panel["gridPos"])]
    assert len(set(cells)) == len(cells), "no panel covers another"
    assert all(x < 24 for x, _ in cells)
    for panel in PANELS:
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert panel["targets"]


def covered(place: dict[str, int]) -> Iterator[tuple[int, int]]:
    for x in range(place["x"], place["x"] + place["w"]):
        for y in range(place["y"], place["y"] + place["h"]):
            yield x, y


@pytest.mark.needs("promtool")
def test_promtool_parses_each_expression_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"dashboard:expression{number}", "expr": text.replace("$__rate_interval", "5m")}
        for number, text in enumerate(expressions())
    ]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run([find("promtool"), "check", "rules", str(file)], text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

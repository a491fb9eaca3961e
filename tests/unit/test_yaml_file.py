"""psched reads files of schedules faster than PyYAML alone would, with the same result."""

from __future__ import annotations

import pytest
import yaml

from psched.config.yaml_file import parse_document
from psched.errors import ConfigError


@pytest.mark.parametrize(
    "text",
    [
        "{a: b, 'c': \"d\", e: [f, {g: h}, [], {}], i: null, j: ~, k: }",
        "[0, 7, -7, +7, 0x1f, 017, 0b11, 1_000, 19:30, 1.5, 1e3, .inf, yes, Off, 'no', '8', 8, '8']",
        "{1: a, true: b, 1.5: c, null: d, '1.0': e}",
        "a: &base {b: 1, c: 2}\nd: {<<: *base, c: 3}\ne: {<<: [*base, {f: 4}]}\n=: g",
        "a: &list [1, {b: c}]\nd: *list\ne: [*list, *list]",
        "{a: !!set {b, c}, d: !!int '8', e: !!str 8, f: !!omap [g: h], i: !!binary aGk=}",
        "text",
        "",
    ],
)
def test_the_content_is_that_of_pyyaml(text: str) -> None:
    found, expected = parse_document(text, "jobs.yml").content, yaml.safe_load(text)
    assert repr(found) == repr(expected)


def test_a_list_that_contains_itself_is_read() -> None:
    found = parse_document("a: &a [*a]", "jobs.yml").content["a"]
    assert found[0] is found


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: {1: b, '1': c}", "duplicate key '1'"),
        ("a: {b: 1, b: 2}", "duplicate key 'b'"),
        ("a: {[b]: c}", "found unhashable key"),
    ],
)
def test_a_key_that_cannot_be_used_is_refused(text: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=rf"^jobs.yml:1: not valid YAML: {fault}"):
        parse_document(text, "jobs.yml")


@pytest.mark.parametrize("loader", [yaml.SafeLoader, yaml.CSafeLoader])
@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a:\n  cron: */5 * * * *", r"a value that begins with \* needs quotes"),
        ("a:\n  cron: * * * * *", r"a value that begins with \* needs quotes"),
        ("a:\n  cron: @daily", "a value that begins with @ needs quotes"),
        ("a:\n\tcron: x", "a tab; indent with spaces"),
    ],
)
def test_a_character_that_yaml_refuses_is_named_with_the_remedy(
    text: str, fault: str, loader: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psched.config.yaml_file._QuickLoader", loader)
    with pytest.raises(ConfigError, match=f"^jobs.yml:2: not valid YAML: {fault}"):
        parse_document(text, "jobs.yml")

"""The files for containers and packages in contrib/ fit the project, and the programs that read them accept them."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from psched.cli.main import psched
from psched.config import load
from tests.programs import ROOT

_LOCK = ROOT / "contrib/requirements.txt"
_COMPOSE = ROOT / "contrib/container/compose.yaml"
_KUBERNETES = ROOT / "contrib/kubernetes/psched.yaml"
_KUBERNETES_VERSIONS = ("1.29", "1.37")
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_lock_file_has_what_the_project_asks_for() -> None:
    text = _LOCK.read_text()
    [extras] = re.findall(r"^# psched\[(.+)\]", text)
    entries = re.split(r"\n(?=\w)", text)[1:]
    pinned = {}
    for entry in entries:
        name, version = re.match(r"([\w.-]+)==([^ ;]+)", entry).groups()  # type: ignore[union-attr]
        assert "--hash=sha256:" in entry, f"{name} has no hash; run scripts/lock"
        pinned[canonicalize_name(name)] = version
    wanted = [*_PROJECT["dependencies"]]
    for extra in extras.split(","):
        wanted += _PROJECT["optional-dependencies"][extra]
    for requirement in map(Requirement, wanted):
        version = pinned.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement} is missing; run scripts/lock"
        assert requirement.specifier.contains(version), f"{requirement}, got {version}; run scripts/lock"


@pytest.mark.parametrize("version", _KUBERNETES_VERSIONS)
def test_kubernetes_accepts_the_manifests(version: str) -> None:
    found = list(yaml.safe_load_all(_KUBERNETES.read_text()))
    for resource in found:
        kubernetes_validate.validate(resource, version, strict=True)
    assert {each["kind"] for each in found} == {"ConfigMap", "Deployment", "PodDisruptionBudget"}


def test_the_configurations_of_containers_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSCHED_DATABASE_URL", "postgresql://psched:secret@database/psched")
    in_kubernetes = tmp_path / "psched.yml"
    in_kubernetes.write_text(next(iter(yaml.safe_load_all(_KUBERNETES.read_text())))["data"]["psched.yml"])
    for path in (in_kubernetes, _COMPOSE.with_name("psched.yml")):
        settings = load(path, "production")
        assert [name for name, _ in settings.named_sections] == ["schedules", "queue"]


def test_stops_are_bounded_by_the_time_after_which_containers_are_killed() -> None:
    """Otherwise a container would be killed with its tasks, which would then wait for the end of their leases."""
    pod = _pod()
    variables = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    assert variables["PSCHED_STOP_TIMEOUT"] == str(pod["terminationGracePeriodSeconds"])
    services = yaml.safe_load(_COMPOSE.read_text())["services"]
    for name in ("one", "two"):
        assert f"{services[name]['environment']['PSCHED_STOP_TIMEOUT']}s" == services[name]["stop_grace_period"]


def test_the_commands_of_containers_exist() -> None:
    services = yaml.safe_load(_COMPOSE.read_text())["services"].values()
    pod = _pod()
    commands = [
        each["command"] for each in (*services, *pod["initContainers"], *pod["containers"]) if "command" in each
    ]
    assert len(commands) == 5
    for program, name, *options in commands:
        assert program == "psched"
        command = psched.get_command(None, name)
        assert command is not None, name
        known = {option for parameter in command.params for option in parameter.opts}
        assert {option for option in options if option.startswith("--")} <= known


def test_every_probe_of_a_daemon_is_that_of_the_image() -> None:
    [probe] = re.findall(
        r"^HEALTHCHECK .*\\\n +CMD (.+)$", (_COMPOSE.parent / "Containerfile").read_text(), re.MULTILINE
    )
    daemon = _pod()["containers"][0]
    for name in ("startupProbe", "livenessProbe"):
        assert daemon[name]["exec"]["command"] == ["sh", "-c", probe], shlex.join(daemon[name]["exec"]["command"])


def _pod() -> dict[str, Any]:
    [deployment] = [each for each in yaml.safe_load_all(_KUBERNETES.read_text()) if each["kind"] == "Deployment"]
    pod: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return pod

"""The unit files pass the checks of systemd's own tools."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

_UNITS = Path(__file__).parents[2] / "systemd"
_NAMES = ["pschedd.service", "pschedd@.service"]


def _analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, timeout=30, check=False)


def _installed(name: str, folder: Path, *drop_ins: Path) -> Path:
    """Copy a unit and replace the path of its program by an existing one, because `verify` needs that.

    Return the copy.
    """
    program = folder / "bin" / "pschedd"
    program.parent.mkdir()
    program.touch(0o755)
    unit = folder / name
    unit.write_text((_UNITS / name).read_text().replace("/opt/psched/bin", str(program.parent)))
    for drop_in in drop_ins:
        (folder / f"{name}.d").mkdir(exist_ok=True)
        shutil.copy(drop_in, folder / f"{name}.d")
    return unit.rename(folder / name.replace("@", "@staging")) if not drop_ins else unit


@pytest.mark.needs("systemd-analyze")
@pytest.mark.parametrize("name", _NAMES)
def test_systemd_finds_no_fault_with_the_unit(name: str, tmp_path: Path) -> None:
    done = _analyze("verify", "--recursive-errors=yes", "--man=no", str(_installed(name, tmp_path)))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.needs("systemd-analyze")
def test_systemd_finds_no_fault_with_the_drop_in_for_commands(tmp_path: Path) -> None:
    unit = _installed("pschedd.service", tmp_path, _UNITS / "command.conf")
    done = _analyze("verify", "--recursive-errors=yes", "--man=no", str(unit))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.needs("systemd-analyze")
@pytest.mark.parametrize("name", _NAMES)
def test_the_exposure_of_the_sandbox_is_at_most_2(name: str) -> None:
    done = _analyze("security", "--offline=true", "--threshold=20", "--no-pager", str(_UNITS / name))
    assert done.returncode == 0, done.stdout + done.stderr
    exposure = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert exposure is not None
    assert float(exposure[1]) <= 2.0


def test_the_two_units_differ_in_their_environment_alone() -> None:
    single, instance = ((_UNITS / name).read_text().splitlines() for name in _NAMES)
    differing = [
        (left.partition("=")[0], right.partition("=")[0])
        for left, right in zip(single, instance, strict=True)
        if left != right
    ]
    settings = [pair for pair in differing if not pair[0].startswith("#")]
    assert settings == [(name, name) for name in ("Description", "ExecStart")]


@pytest.mark.parametrize("name", _NAMES)
def test_the_master_knows_how_long_a_stop_may_take(name: str) -> None:
    settings = dict(
        re.findall(
            r"^(TimeoutStopSec|Environment=PSCHED_STOP_TIMEOUT)=(\d+)$", (_UNITS / name).read_text(), re.MULTILINE
        )
    )
    assert settings == {"TimeoutStopSec": "900", "Environment=PSCHED_STOP_TIMEOUT": "900"}

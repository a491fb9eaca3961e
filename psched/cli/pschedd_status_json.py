"""`pschedd status --json`, for probes. Reads the pid file and the counters, and imports few modules.

psched.cli.entry_point calls `main` before it imports the other commands. With --pid-file, no configuration is read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from psched.metrics.health import as_json, read_health
from psched.supervisor.pidfile import PidFileError, is_stale, read_report

RUNNING = 0
DIED = 1
STOPPED = 3
"""Exit codes of `pschedd status`: RUNNING, DIED and STOPPED."""

_LONGEST = 1000


def print_status(pid_file: Path, metrics_file: Path | None) -> int:
    """Print one JSON object, and return the exit code of `pschedd status`. Raises PidFileError."""
    pid, line = read_report(pid_file)
    if pid is not None:
        code, state = RUNNING, "running"
    elif is_stale(pid_file):
        code, state = DIED, "died"
    else:
        code, state = STOPPED, "stopped"
    shown = {"state": state, "pid": pid, **as_json(read_health(metrics_file)), "troubles": _troubles(line)}
    print(json.dumps(shown))  # noqa: T201
    return code


def _troubles(line: str) -> list[str]:
    """Return the problems in `line`, the master's report in the pid file.

    Returns no problems for an invalid line, because the daemon's user can write any text into the pid file.
    """
    try:
        found = json.loads(line)["troubles"]
        return [str(trouble)[:_LONGEST] for trouble in found]
    except (ValueError, TypeError, KeyError, RecursionError):
        return []


def main(arguments: Sequence[str]) -> int | None:
    """Run `status --json --pid-file PATH` and return the exit code.

    Returns None for other options, for a pid file that cannot be used, or if the counters are not beside the pid file.
    The caller then reads the configuration.
    """
    words = [part for word in arguments for part in (word.split("=", 1) if word.startswith("--pid-file=") else [word])]
    if "--pid-file" not in words[:-1]:
        return None
    place = words.index("--pid-file")
    path = Path(words[place + 1]).absolute()
    if sorted(words[:place] + words[place + 2 :]) != ["--json", "status"]:
        return None
    if not path.name:
        return None
    metrics_file = path.with_name(f"{path.name}.metrics")
    try:
        is_elsewhere = not metrics_file.exists() and read_report(path)[0] is not None
        return None if is_elsewhere else print_status(path, metrics_file)
    except (PidFileError, OSError):
        return None

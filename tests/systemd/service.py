"""A unit on a machine, and methods by which tests control it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.daemon.harness import PATIENCE, wait_for
from tests.docs.snippets import snippets
from tests.systemd.machine import Machine

CHECKOUT = "/srv/psched"
"""The folder in which a machine sees the files of the checkout that an installation needs."""

_OPERATIONS = Path(__file__).parents[2] / "docs/operations.md"


def follow_documents(machine: Machine, step: str) -> None:
    """Run the commands of a step of docs/operations.md, as root in the checkout."""
    texts = [block.text for block in snippets(_OPERATIONS) if (block.action, block.argument) == ("machine", step)]
    assert texts, f"docs/operations.md has no step {step}"
    for text in texts:
        machine.run("sh", "-euc", f"cd {CHECKOUT}\n{text}")


class Service:
    """The unit `name` of a machine."""

    def __init__(self, machine: Machine, name: str = "pschedd") -> None:
        self.machine = machine
        self.name = name
        self.state = machine.root / "var/lib/psched"

    def systemctl(self, verb: str, *options: str) -> str:
        return self.machine.run("systemctl", verb, *options, self.name)

    def psched(self, *arguments: str) -> str:
        """Run a psched command as the service's user. Return its output."""
        prefix = ("runuser", "-u", "psched", "--", "/opt/psched/bin/psched", "-e", "production")
        return self.machine.run(*prefix, "-c", "/etc/psched/psched.yml", *arguments)

    def shown(self, key: str) -> dict[str, Any]:
        """Return what `psched show` prints of a schedule."""
        found: dict[str, Any] = json.loads(self.psched("--json", "show", key))
        return found

    def properties(self, *names: str) -> dict[str, str]:
        return self.machine.show(self.name, *names)

    def wait_until_active(self, *, after_restarts: int = 0) -> None:
        """Wait until the service is up. `after_restarts`: how often systemd must have restarted it."""
        wanted = {"ActiveState": "active", "SubState": "running", "NRestarts": str(after_restarts)}
        wait_for(lambda: self.properties(*wanted) == wanted, self.explain)

    def wait_for_trace(self, name: str, within: float = PATIENCE) -> None:
        wait_for((self.state / name).exists, self.explain, within)

    def forget_traces(self) -> None:
        (self.state / "short").unlink(missing_ok=True)

    def explain(self) -> str:
        log = self.machine.root / "var/log/psched/psched.log"
        told = self.machine.run("systemctl", "status", "--no-pager", "--full", self.name, check=False)
        return told + (log.read_text() if log.exists() else "(no log)")

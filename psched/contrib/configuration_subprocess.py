"""Reads the configuration of a Django or Flask project in a subprocess.

So the master of a daemon imports none of the user's modules.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from psched.errors import ConfigError

_PATIENCE = 60
"""The maximum number of seconds in which the new process may print its configuration."""


def printed_configuration(module: str, imported: str) -> Any:
    """Return the JSON value that `python -m module` prints last.

    `imported`: names the modules that the new process imports, in error messages. Raises ConfigError, with the error
    that the new process has printed.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", module], capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"importing {imported} took longer than {_PATIENCE} s; remove slow work from these modules"
        ) from None
    if done.returncode:
        raise ConfigError(done.stderr.strip() or f"importing {imported} ended with exit status {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])

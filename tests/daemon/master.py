"""The master of the tests: `python master.py CONFIG [OPTIONS-AS-JSON]`.

The harness starts it, and so does a binary upgrade.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from psched.config import Settings, load
from psched.errors import ConfigError
from psched.supervisor.binary_upgrade import hold_pid_file
from psched.supervisor.run_master import run_master


def main(path: str, options: str = "{}") -> int:
    """Run the application of the configuration. Write the file `ready` when the children are up."""
    folder = Path(path).parent

    def load_config() -> Settings:
        return load(path)

    def ready() -> None:
        (folder / "ready").write_text(str(os.getpid()))

    try:
        pid_file = load(path).pid_file
        held = None if pid_file is None else hold_pid_file(pid_file)
        return run_master(None, load_config, pid_file=held, ready=ready, **json.loads(options))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

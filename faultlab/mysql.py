"""The differences of a private MySQL from MariaDB. Runs in the test process."""

from __future__ import annotations

import functools
import subprocess
import tempfile
from pathlib import Path

from faultlab import prerequisites
from faultlab.unprivileged import chown_to_server_user, run_as_server_user

OPTIONS = [
    "--innodb-redo-log-capacity=16M",
    "--innodb-buffer-pool-size=32M",
    "--mysqlx=OFF",
    "--secure-file-priv=NULL",
    "--tls-version=",
]
"""Small buffers, no import or export of files, and no encryption (MariaDB's default), so that proxies see statements.
"""


def is_chosen() -> bool:
    """Return whether PSCHED_TEST_SERVERS contains a `mysqld` of MySQL, not of MariaDB."""
    program = prerequisites.chosen("mysqld")
    return program is not None and _is_mysql(program)


def install(data: Path, users: str) -> None:
    """Create the data folder of a new server. `users`: the statements that create the server's users."""
    with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
        file.write(users)
        file.flush()
        chown_to_server_user(Path(file.name))
        chown_to_server_user(Path(folder))
        run_as_server_user([
            prerequisites.find("mysqld"), "--no-defaults", "--initialize-insecure", f"--datadir={data}",
            f"--tmpdir={folder}", f"--init-file={file.name}", *OPTIONS,
        ])  # fmt: skip


@functools.cache
def _is_mysql(program: Path) -> bool:
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return "MariaDB" not in told

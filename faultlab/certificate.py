"""A self-signed certificate of a private server, for the name `localhost`. Runs in the test process."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

from faultlab.unprivileged import chown_to_server_user


class Certificate(NamedTuple):
    """The file of a certificate, which is also the certificate of its authority, and the file of its key."""

    file: Path
    key: Path


def make_certificate(folder: Path) -> Certificate:
    """Create a certificate in `folder`, which the user of the servers can read. Needs openssl."""
    made = Certificate(folder / "server.pem", folder / "server.key")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*command, "-out", made.file, "-keyout", made.key], check=True, capture_output=True)
    made.key.chmod(0o600)
    chown_to_server_user(made.key)
    return made

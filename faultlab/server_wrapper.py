"""Runs one database server and kills it when the test process ends, even by kill -9. A process between the two.

Arguments: folder, user (empty: the present one), command… The wrapper prints the server's pid, then waits until the
server ends, or until its own stdin is at end of file, because the test process is gone. Then it kills the server with
all its processes and removes the folder.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import threading
from contextlib import suppress

import psutil


def main(folder: str, user: str, *command: str) -> int:
    """Run the command until it ends or the tests do; returns its exit status."""
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,  # the server's log: Redis says there why it ends
        cwd=folder,
        user=user or None,
        group=pwd.getpwnam(user).pw_gid if user else None,
        extra_groups=[] if user else None,
    )
    print(server.pid, flush=True)
    ending = threading.Lock()
    threading.Thread(target=_end_with_the_tests, args=(server.pid, folder, ending), daemon=True).start()
    status = server.wait()
    ending.acquire()  # this process ends its thread, too: wait until the thread has killed all and removed the folder
    return status


def _end_with_the_tests(pid: int, folder: str, ending: threading.Lock) -> None:
    os.read(0, 1)
    with ending:
        server = psutil.Process(pid)
        tree = [*server.children(recursive=True), server]
        for process in tree:
            with suppress(psutil.NoSuchProcess):  # a session may end at any moment
                process.kill()
        psutil.wait_procs([server], timeout=5)  # a server that still writes would prevent that the folder is removed
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Runs one server and takes it down when the tests end, however they end. A process of its own between the two.

Arguments: folder, user (empty: the present one), command… It prints the server's pid, then waits for the server to
end, or for the end of file on stdin, which comes when the test process is gone, even by kill -9. Then it kills the
server with all its processes and removes the folder.
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
    ending.acquire()  # the thread ends with us: not before it has killed all and removed the folder
    return status


def _end_with_the_tests(pid: int, folder: str, ending: threading.Lock) -> None:
    os.read(0, 1)
    with ending:
        server = psutil.Process(pid)
        tree = [*server.children(recursive=True), server]
        for process in tree:
            with suppress(psutil.NoSuchProcess):  # a session may end at any moment
                process.kill()
        psutil.wait_procs([server], timeout=5)  # else they may still write while the folder is removed
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

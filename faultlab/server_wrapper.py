"""Runs one database server, and kills it when the test process ends, even by SIGKILL.

This process is the child of the test process and the parent of the server. Arguments: the folder, the user (empty: the
present user), and the command with its arguments. The wrapper prints the server's pid. It then waits until the server
ends, or until its own stdin is at end of file because the test process is gone. In the second case it kills all
processes of the server, and removes the folder.
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
    """Run the command until the command or the tests end. Return the exit status of the command."""
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,  # the server's log, to which Redis writes why it ends
        cwd=folder,
        user=user or None,
        group=pwd.getpwnam(user).pw_gid if user else None,
        extra_groups=[] if user else None,
    )
    print(server.pid, flush=True)
    ending = threading.Lock()
    threading.Thread(target=_end_with_the_tests, args=(server.pid, folder, ending), daemon=True).start()
    status = server.wait()
    # Returning would end the thread, too. So wait until the thread has killed all processes and removed the folder.
    ending.acquire()
    return status


def _end_with_the_tests(pid: int, folder: str, ending: threading.Lock) -> None:
    os.read(0, 1)
    with ending:
        server = psutil.Process(pid)
        tree = [*server.children(recursive=True), server]
        for process in tree:
            with suppress(psutil.NoSuchProcess):  # a process of the server may end at any moment
                process.kill()
        psutil.wait_procs([server], timeout=5)  # while the server still writes, its folder cannot be removed
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""A process that a handler forks is not a worker, from its first moment."""

from __future__ import annotations

import signal
import subprocess
import sys

WORKER = """
import os, signal
from psched.process.child_protocol import open_pipes
from psched.process.signals import MASTER_SIGNALS, SignalQueue
from psched.child.main import register_fork_hooks

_, pipe = open_pipes()
signals = SignalQueue()
signals.install(MASTER_SIGNALS)
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))  # before it can be told anything
register_fork_hooks(signals, pipe)
pid = os.fork()
if pid == 0:
    os._exit(0)
_, status = os.waitpid(pid, 0)
blocked = MASTER_SIGNALS & signal.pthread_sigmask(signal.SIG_BLOCK, [])
print(os.waitstatus_to_exitcode(status), signals.take(), len(blocked))
"""


def test_a_signal_to_a_process_just_forked_ends_it_and_is_not_taken_for_the_workers() -> None:
    done = subprocess.run([sys.executable, "-c", WORKER], capture_output=True, text=True, timeout=30, check=False)
    assert (done.stdout.strip(), done.stderr) == (f"{-signal.SIGTERM} [] 0", "")

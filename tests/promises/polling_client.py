"""A client that polls by itself: acquires what is due, and later tries to settle it in every way.

Argument: the configuration file. For each line on stdin it does one step and prints a JSON object: it opens the
schedules; it takes what is due; it tries every verb on each run. A process of its own, without a master or anybody
else to end it when it was frozen.
"""

from __future__ import annotations

import json
import sys

import psched


def main(path: str) -> None:
    """Do the three steps."""
    sys.stdin.readline()
    with psched.open(path) as schedules:
        print(json.dumps(schedules.store.now()), flush=True)
        sys.stdin.readline()
        tasks = {task.key: task for task in schedules.poll_multi(max_acquire=10)}
        print(json.dumps({key: [task.scheduled_time] for key, task in tasks.items()}), flush=True)
        sys.stdin.readline()
        print(json.dumps({key: try_all(task) for key, task in tasks.items()}), flush=True)


def try_all(task: psched.Task) -> dict[str, str]:
    """Try every verb on a run, first the one that its key names, and return what came of each."""
    outcomes = {}
    for verb in sorted(("finish", "heartbeat", "release", "retry"), key=lambda verb: verb != task.key):
        try:
            getattr(task, verb)()
        except psched.ScheduleError as error:
            outcomes[verb] = type(error).__name__
        else:
            outcomes[verb] = "done"
    return outcomes


if __name__ == "__main__":
    main(sys.argv[1])

"""A program that polls by itself: it acquires due runs, and later tries to settle each of them in every way.

Its argument is the configuration file. For each line on stdin it does one step and prints a JSON object: it opens the
schedules; it acquires what is due; it calls every settling method on each run. It has no master, so nothing ends it
after it was frozen.
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
    """Call every settling method of a run, beginning with the one that is the run's key.

    Return the result of each call.
    """
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

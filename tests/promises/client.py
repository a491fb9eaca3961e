"""A program that polls for itself: takes what is due, waits for a line on stdin, then settles each run in its own way.

Arguments: the configuration file. Prints one JSON object for all it took, then one for what came of each verb. A
process of its own, without a master or anybody else to end it when it was frozen.
"""

from __future__ import annotations

import json
import sys

import psched


def main(path: str) -> None:
    """Each run tries the verb that its key names, and then all the others: none may come through."""
    with psched.open(path) as schedules:
        tasks = {task.key: task for task in schedules.poll_multi(max_acquire=10)}
        print(json.dumps({key: task.scheduled_time for key, task in tasks.items()}), flush=True)
        sys.stdin.readline()
        print(json.dumps({key: try_all(task) for key, task in tasks.items()}), flush=True)


def try_all(task: psched.Task) -> dict[str, str]:
    """Try every verb on a run, and return what came of each."""
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

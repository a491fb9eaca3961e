"""A handler that stands for the work for a tenant."""

import time

import psched

app = psched.App()


@app.task
def work(task: psched.Task) -> None:
    """Work for a moment."""
    time.sleep(0.01)
    print("worked for", task.key.rpartition("-")[0], flush=True)

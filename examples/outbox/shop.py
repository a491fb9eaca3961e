"""The handlers of the shop."""

import warehouse

import psched

app = psched.App()


@app.task
def ship(task: psched.Task, order: int, item: str) -> None:
    """Tell the warehouse. If the answer is lost, this runs again, with a higher fence."""
    warehouse.reserve(order, item, task.fence)

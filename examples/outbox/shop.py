"""The handlers of the shop."""

import warehouse

import psched

app = psched.App()


@app.task
def ship(task: psched.Task, order: int, item: str) -> None:
    """Send the order to the warehouse. If the answer is lost, this function runs again, with a larger fence."""
    warehouse.reserve(order, item, task.fence)

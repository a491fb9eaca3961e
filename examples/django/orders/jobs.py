"""psched's own handlers: for schedules, and for tasks that need more than Django's API has."""

import psched
from orders.models import Order

app = psched.App()


@app.task("orders.forget")
def forget(task):
    """Delete old confirmed orders. A schedule of the type `orders.forget` runs this function."""
    old, _ = Order.objects.filter(confirmed_at__isnull=False, amount__lt=task.data["below"]).delete()
    print(f"{old} orders deleted", flush=True)

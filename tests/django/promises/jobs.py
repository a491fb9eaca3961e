"""Functions registered as tasks by psched's decorator, in a Django project."""

from orders.models import Order

import psched

app = psched.App()


@app.task
def order(email: str, *, amount: int = 1) -> int:
    """Create an order. Return how many orders exist."""
    Order.objects.create(email=email, amount=amount)
    return Order.objects.count()


@app.task
def order_once(number: int, email: str) -> None:
    """Create an order. If the task runs again, it creates no second one."""
    Order.objects.get_or_create(pk=number, defaults={"email": email, "amount": 1})

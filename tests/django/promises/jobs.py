"""psched's own task functions, in Django."""

from orders.models import Order

import psched

app = psched.App()


@app.task
def order(email: str, *, amount: int = 1) -> int:
    """Make an order and return how many there are."""
    Order.objects.create(email=email, amount=amount)
    return Order.objects.count()


@app.task
def order_once(number: int, email: str) -> None:
    """Make an order, once if the task runs again."""
    Order.objects.get_or_create(pk=number, defaults={"email": email, "amount": 1})

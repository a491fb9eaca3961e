"""Django's tasks: psched's workers run them."""

import django
from django.core.mail import send_mail
from django.utils import timezone

from orders.models import Order

if django.VERSION >= (6,):
    from django.tasks import task
else:
    from django_tasks import task


@task(queue_name="mail", priority=10, max_attempts=5, retry_wait={"first": 10, "limit": 600})
def confirm(order_id):
    """Send the mail for an order, once: a task that was interrupted runs again."""
    order = Order.objects.get(pk=order_id)
    if order.confirmed_at is None:
        send_mail("Your order", f"{order.amount} euro, thank you!", "shop@example.com", [order.email])
        order.confirmed_at = timezone.now()
        order.save()


@task
def total(email):
    """Return what a customer has ordered."""
    return sum(Order.objects.filter(email=email).values_list("amount", flat=True))


@task(takes_context=True)
async def count(context):
    """Count the orders, in a coroutine."""
    return {"orders": await Order.objects.acount(), "attempt": context.attempt}

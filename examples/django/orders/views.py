"""A view writes an order and its task in one transaction: both exist, or neither."""

from django.db import transaction
from django.http import JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from orders.models import Order
from orders.tasks import confirm


@csrf_exempt  # so that curl can post to the sample
@require_POST
def create(request):
    """Take an order."""
    with transaction.atomic():
        order = Order.objects.create(email=request.POST["email"], amount=request.POST["amount"])
        result = confirm.enqueue(order.pk)
    return JsonResponse({"order": order.pk, "task": result.id})


def task(request, key):
    """Return the status of a task."""
    return JsonResponse({"status": confirm.get_result(key).status})

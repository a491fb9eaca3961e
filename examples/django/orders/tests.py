"""Tests of the sample: tasks that a view enqueues are part of the test's transaction, and `run_tasks` runs them."""

from django.core import mail
from django.test import TestCase
from django.utils import timezone

from orders.models import Order
from orders.tasks import count, total
from psched.contrib.django.clients import queue, schedules
from psched.contrib.django.test import run_tasks


class OrderTest(TestCase):
    """Orders are confirmed by mail."""

    def test_an_order_is_confirmed(self):
        """The view enqueues a task; when it has run, the mail is sent."""
        answer = self.client.post("/orders/", {"email": "ann@example.com", "amount": 30}).json()
        self.assertEqual(len(mail.outbox), 0)
        self.assertEqual(run_tasks(), 1)
        self.assertEqual([message.to for message in mail.outbox], [["ann@example.com"]])
        self.assertEqual(self.client.get(f"/tasks/{answer['task']}/").json(), {"status": "SUCCESSFUL"})

    def test_a_task_returns_a_value(self):
        """The result is stored."""
        Order.objects.create(email="ann@example.com", amount=30)
        results = [total.enqueue("ann@example.com"), count.enqueue()]
        run_tasks()
        for result in results:
            result.refresh()
        self.assertEqual([result.return_value for result in results], [30, {"orders": 1, "attempt": 1}])

    def test_a_task_of_psched(self):
        """A handler of psched's own, for a task and for a schedule."""
        Order.objects.create(email="ann@example.com", amount=3, confirmed_at=timezone.now())
        queue().submit("forget-1", "orders.forget", {"below": 5})
        schedules().add("forget", "orders.forget", cron="@daily", data={"below": 5})
        run_tasks()
        self.assertEqual(Order.objects.count(), 0)
        self.assertEqual([row.key for row in schedules().list()], ["forget"])

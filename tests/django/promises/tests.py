"""Tests, run by Django's test runner, of psched's promises to code in Django. They use the database of the settings."""

import sys
from dataclasses import replace
from datetime import timedelta
from unittest import mock

from django.db import transaction
from django.test import TestCase, TransactionTestCase, override_settings
from django.urls import reverse
from django.utils import timezone
from orders.models import Order

from promises import jobs, tasks
from psched.contrib.django import clients
from psched.contrib.django.backend import task_of
from psched.contrib.django.django_tasks_compat import (
    InvalidTask,
    TaskResultDoesNotExist,
    task_enqueued,
    task_finished,
    task_started,
)
from psched.contrib.django.test import run_tasks


class OutsideError(Exception):
    """Raised to roll back a transaction."""


class TransactionTest(TransactionTestCase):
    """After a commit a submitted task exists; after a rollback it never existed."""

    def tearDown(self):
        """Delete the tasks: TransactionTestCase empties only the tables of models."""
        for row in list(clients.queue().list()):
            clients.queue()[row.key].delete()

    def test_a_task_is_part_of_the_transaction(self):
        with self.assertRaises(OutsideError), transaction.atomic():
            lost = tasks.add.enqueue(1)
            self.assertEqual(tasks.add.get_result(lost.id).status, "READY")
            raise OutsideError
        with self.assertRaises(TaskResultDoesNotExist):
            tasks.add.get_result(lost.id)
        with transaction.atomic():
            kept = tasks.add.enqueue(1)
        self.assertEqual(tasks.add.get_result(kept.id).status, "READY")

    def test_a_savepoint_that_is_rolled_back_takes_its_task_with_it(self):
        with transaction.atomic():
            kept = tasks.add.enqueue(1)
            with self.assertRaises(OutsideError), transaction.atomic():
                tasks.add.enqueue(2)
                raise OutsideError
        self.assertEqual([row.key for row in clients.queue().list()], [kept.id])

    def test_a_duplicate_key_leaves_the_transaction_usable(self):
        with transaction.atomic():
            clients.queue().submit("key", "type")
            self.assertEqual(clients.queue().submit_many([stores_task("key"), stores_task("other")]), ["key"])
            Order.objects.create(email="ann@example.com", amount=1)
        self.assertEqual([row.key for row in clients.queue().list()], ["key", "other"])
        self.assertEqual(Order.objects.count(), 1)

    def test_on_commit_enqueues_after_the_commit(self):
        backend = {"BACKEND": "psched.contrib.django.backend.PschedBackend", "OPTIONS": {"on_commit": True}}
        with override_settings(TASKS={"default": backend}):
            with transaction.atomic():
                result = tasks.add.enqueue(1)
                with self.assertRaises(TaskResultDoesNotExist):
                    tasks.add.get_result(result.id)
            self.assertEqual(tasks.add.get_result(result.id).status, "READY")
            with self.assertRaises(OutsideError), transaction.atomic():
                tasks.add.enqueue(1)
                raise OutsideError
        self.assertEqual(len(list(clients.queue().list())), 1)

    def test_a_settled_run_that_is_not_committed_is_not_settled(self):
        tasks.add.enqueue(1)
        with self.assertRaises(OutsideError), transaction.atomic():
            self.assertEqual(run_tasks(), 1)
            raise OutsideError
        self.assertEqual([row.status for row in clients.queue().list()], ["waiting"])

    def test_what_belongs_together_is_written_together(self):
        schedules = clients.schedules()
        with (
            mock.patch.object(schedules.store._inserts, "_record", side_effect=OutsideError),
            self.assertRaises(OutsideError),
        ):
            schedules.add("unrecorded", "orders.forget", cron="0 3 * * *")
        self.assertFalse(schedules["unrecorded"].exists())

    def test_a_change_of_too_few_rows_changes_none(self):
        database, steps = clients.queue().store._database, []
        for email in ("ann@example.com", "bob@example.com"):
            Order.objects.create(email=email, amount=1)

        def change(count):
            return database.run(
                lambda connection, _: database.change_rows(
                    connection, count, lambda: Order.objects.update(amount=2), lambda: steps.append(count)
                )
            )

        with transaction.atomic():
            self.assertFalse(change(3))
            self.assertEqual((set(Order.objects.values_list("amount", flat=True)), steps), ({1}, []))
            self.assertTrue(change(2))
        self.assertEqual((set(Order.objects.values_list("amount", flat=True)), steps), ({2}, [2]))

    def test_schedules_are_part_of_the_transaction(self):
        schedules = clients.schedules()
        schedules.add("daily", "orders.forget", cron="0 3 * * *")
        with self.assertRaises(OutsideError), transaction.atomic():
            schedules["daily"].pause()
            self.assertTrue(schedules["daily"].metadata().paused)
            raise OutsideError
        self.assertFalse(schedules["daily"].metadata().paused)
        schedules["daily"].delete()


def stores_task(key):
    """Return a new task of psched, not one of Django."""
    from psched import NewTask

    return NewTask(key, "type")


class BackendTest(TestCase):
    """The promises of Django's task framework."""

    def test_results(self):
        result = tasks.add.enqueue(1, second=2)
        self.assertEqual((result.status, result.args, result.kwargs), ("READY", [1], {"second": 2}))
        self.assertEqual(run_tasks(), 1)
        result.refresh()
        self.assertEqual((result.status, result.return_value, result.attempts), ("SUCCESSFUL", 3, 1))
        self.assertEqual(tasks.add.get_result(result.id).return_value, 3)
        self.assertLessEqual(result.enqueued_at, result.finished_at)

    def test_the_context(self):
        result = tasks.attempt.enqueue()
        run_tasks()
        result.refresh()
        self.assertEqual(result.return_value, [1, result.id, "RUNNING", True])

    def test_a_deferred_task_waits(self):
        later = tasks.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1)
        self.assertEqual(run_tasks(), 0)
        later.refresh()
        self.assertEqual(later.status, "READY")
        found = tasks.add.get_result(later.id)
        self.assertAlmostEqual(found.task.run_after.timestamp(), later.task.run_after.timestamp(), places=2)

    def test_the_highest_priority_comes_first(self):
        order = []
        with mock.patch.object(tasks, "note", order.append):
            for priority in (-100, 0, 100):
                tasks.breaks.using(priority=priority).enqueue(str(priority))
            run_tasks()
        self.assertEqual(list(dict.fromkeys(order)), ["attempt of 100", "attempt of 0", "attempt of -100"])

    def test_a_task_that_raises_fails(self):
        result = tasks.fails.enqueue()
        run_tasks()
        result.refresh()
        self.assertEqual((result.status, result.attempts), ("FAILED", 1))
        [error] = result.errors
        self.assertIs(error.exception_class, LookupError)
        self.assertIn("at once", error.traceback)
        with self.assertRaisesMessage(ValueError, "Task failed"):
            _ = result.return_value

    def test_a_task_may_be_tried_several_times(self):
        result = tasks.breaks.enqueue("x")
        self.assertEqual(run_tasks(), 2)
        result.refresh()
        self.assertEqual((result.status, result.attempts), ("FAILED", 2))

    def test_a_result_that_cannot_be_stored_fails_the_task(self):
        result = tasks.unstorable.enqueue()
        self.assertEqual(run_tasks(), 1)
        result.refresh()
        self.assertEqual(result.status, "FAILED")
        self.assertIn("object", result.errors[0].traceback)

    def test_a_coroutine_sees_the_transaction(self):
        Order.objects.create(email="ann@example.com", amount=1)
        result = tasks.orders.enqueue()
        run_tasks()
        result.refresh()
        self.assertEqual(result.return_value, 1)

    def test_task_functions_of_psched_submit_in_the_transaction(self):
        kept = jobs.order.submit("ann@example.com", amount=3)
        with self.assertRaises(OutsideError), transaction.atomic():
            jobs.order.submit("bob@example.com")
            raise OutsideError
        self.assertEqual(run_tasks(), 1)
        self.assertEqual(kept.metadata().result, 1)
        self.assertEqual([order.email for order in Order.objects.all()], ["ann@example.com"])

    def test_another_queue(self):
        result = tasks.mail.enqueue()
        self.assertEqual([row.type for row in clients.queue().list()], ["mail:promises.tasks.mail"])
        run_tasks()
        self.assertEqual(tasks.mail.get_result(result.id).return_value, "mail")

    def test_signals(self):
        seen = []
        for signal in (task_enqueued, task_started, task_finished):
            receiver = mock.Mock(side_effect=lambda task_result, **_: seen.append(str(task_result.status)))
            signal.connect(receiver, weak=False)
            self.addCleanup(signal.disconnect, receiver)
        tasks.add.enqueue(1)
        tasks.breaks.enqueue("x")
        run_tasks()
        self.assertEqual(sorted(seen), sorted(["READY"] * 2 + ["RUNNING"] * 3 + ["SUCCESSFUL", "FAILED"]))

    def test_async(self):
        async def enqueue():
            result = await tasks.add.aenqueue(1, 2)
            found = await tasks.add.aget_result(result.id)
            await result.arefresh()
            return found.id == result.id

        # asgiref runs the database's part in this thread, as in an async view
        from asgiref.sync import async_to_sync

        self.assertTrue(async_to_sync(enqueue)())

    def test_cancelled(self):
        result = tasks.add.enqueue(1)
        clients.queue()[result.id].cancel_request()
        result.refresh()
        self.assertEqual(result.status, "FAILED")
        self.assertEqual(result.errors[0].exception_class.__name__, "CancelRequestedError")

    def test_a_changed_signature_fails_the_task_and_names_the_difference(self):
        result = tasks.add.enqueue(1, second=2)
        with mock.patch.object(tasks.add.func, "__signature__", signature_of(lambda first: None), create=True):
            run_tasks()
        result.refresh()
        self.assertIn("promises.tasks.add has changed since the task was enqueued", result.errors[0].traceback)

    def test_wrong_arguments_are_refused(self):
        for args, kwargs, message in (
            ((object(),), {}, "promises.tasks.add: data cannot be stored as JSON: data['args'][0] is a object"),
            ((), {"first": {"a": [timezone.now()]}}, "data['kwargs']['first']['a'][0] is a datetime"),
            ((), {}, "promises.tasks.add: missing a required argument: 'first'"),
            ((1,), {"third": 1}, "promises.tasks.add: got an unexpected keyword argument 'third'"),
        ):
            with self.assertRaisesMessage(TypeError, message):
                tasks.add.enqueue(*args, **kwargs)
        self.assertEqual(list(clients.queue().list()), [])

    def test_wrong_tasks_are_refused(self):
        for options, message in (
            ({"priority": 101}, "priority must be a whole number between -100 and 100"),
            ({"queue_name": "none"}, "Queue 'none' is not valid for backend."),
            ({"run_after": timezone.now().replace(tzinfo=None)}, "run_after must be an aware datetime."),
        ):
            with self.assertRaisesMessage(InvalidTask, message):
                tasks.add.using(**options)
        with self.assertRaises(TaskResultDoesNotExist):
            tasks.add.get_result("no such key")
        with self.assertRaises(TaskResultDoesNotExist):
            tasks.add.get_result("")

    def test_only_modules_of_the_project_are_imported(self):
        """Everyone who can write to the table can choose the type of a task."""
        with self.assertRaisesMessage(ImportError, "antigravity belongs to no app of INSTALLED_APPS"):
            task_of("default:antigravity.geohash")
        self.assertNotIn("antigravity", sys.modules)
        self.assertEqual(task_of("default:promises.tasks.add").func, tasks.add.func)

    def test_a_task_of_another_module_is_refused(self):
        """A worker would not import it."""
        with self.assertRaisesMessage(InvalidTask, "antigravity.add: antigravity belongs to no app of INSTALLED_APPS"):
            replace(tasks.add, func=elsewhere).enqueue(1, 2)


def elsewhere(a, b):
    """A function outside of all apps."""


elsewhere.__module__, elsewhere.__qualname__ = "antigravity", "add"


def signature_of(function):
    """Return the signature of a function."""
    from inspect import signature

    return signature(function)


class AdminTest(TestCase):
    """The admin pages show rows, and their actions change rows."""

    def setUp(self):
        from django.contrib.auth.models import User

        self.client.force_login(User.objects.create_superuser("root"))

    def act(self, url, action, *keys):
        """Run an action of the admin page on these rows. Return the messages."""
        answer = self.client.post(url, {"action": action, "key": keys}, follow=True)
        self.assertEqual(answer.status_code, 200)
        return [str(message) for message in answer.context["messages"]]

    def test_tasks(self):
        from django.contrib.admin.models import LogEntry

        url = reverse("admin:psched_task_changelist")
        result = tasks.fails.enqueue()
        run_tasks()
        page = self.client.get(url, {"state": "failed"})
        self.assertContains(page, result.id)
        self.assertContains(page, "LookupError: at once")
        self.assertNotContains(self.client.get(url, {"state": "waiting"}), result.id)
        detail = reverse("admin:psched_task_change", args=[result.id])
        self.assertContains(self.client.get(detail), "Traceback")
        self.assertEqual(self.act(detail, "retry"), [f"retry: {result.id}"])
        result.refresh()
        self.assertEqual(result.status, "READY")
        self.assertEqual(
            self.act(url, "retry", result.id),
            [f"{result.id}: '{result.id}' is waiting; only a failed or cancelled task can be tried again"],
        )
        self.assertEqual(self.act(url, "cancel", result.id), [f"cancel: {result.id}"])
        self.assertEqual(self.act(url, "cancel", "none"), ["none: no task has the key 'none'"])
        self.assertEqual(self.act(url, "", result.id), ["Choose an action."])
        self.assertEqual([entry.object_id for entry in LogEntry.objects.all()], [result.id, result.id])
        self.assertEqual(self.client.get(reverse("admin:psched_task_change", args=["none"])).status_code, 404)

    def test_schedules(self):
        url = reverse("admin:psched_schedule_changelist")
        clients.schedules().add("daily <b>", "orders.forget", cron="0 3 * * *", data={"below": 5})
        self.assertContains(self.client.get(url), "daily &lt;b&gt;")
        for action, state in (("pause", "paused"), ("resume", "waiting"), ("run now", "due")):
            self.assertEqual(self.act(url, action, "daily <b>"), [f"{action}: daily <b>"])
            row = clients.schedules()["daily <b>"].metadata()
            self.assertEqual(clients.schedules().state(row, clients.schedules().store.now()).word, state)
        self.assertContains(self.client.get(reverse("admin:psched_schedule_change", args=["daily _3Cb_3E"])), "below")

    def test_pages(self):
        clients.queue().submit_many([stores_task(f"{number:03}") for number in range(150)])
        page = self.client.get(reverse("admin:psched_task_changelist"), {"type": "type"})
        self.assertEqual(len(page.context["rows"]), 100)
        page = self.client.get(reverse("admin:psched_task_changelist") + "?" + page.context["following"])
        self.assertEqual([key for key, *_ in page.context["rows"]], [f"{number:03}" for number in range(100, 150)])

    def test_permissions(self):
        from django.contrib.auth.models import Permission, User

        reader = User.objects.create_user("reader", is_staff=True)
        url = reverse("admin:psched_task_changelist")
        self.client.force_login(reader)
        self.assertEqual(self.client.get(url).status_code, 403)
        reader.user_permissions.add(Permission.objects.get(codename="view_task"))
        result = tasks.add.enqueue(1)
        self.assertNotContains(self.client.get(url), 'name="action"')
        self.assertEqual(self.client.post(url, {"action": "cancel", "key": [result.id]}).status_code, 403)
        result.refresh()
        self.assertEqual(result.status, "READY")

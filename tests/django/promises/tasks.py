"""Functions registered as tasks by Django's decorator, for the tests."""

import multiprocessing
import os
import time
from pathlib import Path

import django
from django.db import connection
from orders.models import Order

if django.VERSION >= (6,):
    from django.tasks import task
else:
    from django_tasks import task

NOTES = Path(__file__).parents[1] / "notes"


def note(text):
    """Append a line to the file `notes`, which tests read."""
    with NOTES.open("a") as file:
        print(text, file=file)


@task
def add(first, second=0):
    """Return the sum."""
    return first + second


@task(takes_context=True)
def attempt(context):
    """Return values of the context."""
    result = context.task_result
    return [context.attempt, result.id, str(result.status), result.started_at is not None]


@task(max_attempts=2, retry_wait=0)
def breaks(message):
    """Fail at each of the two attempts."""
    note(f"attempt of {message}")
    raise LookupError(message)


@task
def fails():
    """Fail. The task has one attempt, because its decorator sets no other number."""
    raise LookupError("at once")


@task
async def orders():
    """Return the number of orders, by a coroutine."""
    return await Order.objects.acount()


@task
def unstorable():
    """Return a value that cannot be stored as JSON."""
    return object()


@task(queue_name="mail")
def mail():
    """Return the name of this task's queue."""
    return "mail"


@task
def outlives(name):
    """Write a note at the begin. In the first run, then kill the process."""
    note(f"begin {name}")
    if NOTES.read_text().count(f"begin {name}") == 1:
        os.kill(os.getpid(), 9)
    return "survived"


@task
def connected():
    """Return whether a connection was open before, and the id of the database session."""
    before = connection.connection is not None
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return [before, cursor.fetchone()[0]]


def _count(pipe):
    pipe.send([connection.connection is None, Order.objects.count()])


@task
def forks():
    """Use the database in a forked process, and then use this process's connection again."""
    Order.objects.create(email="forked@example.com", amount=1)
    own, others = multiprocessing.get_context("fork").Pipe()
    process = multiprocessing.get_context("fork").Process(target=_count, args=(others,))
    process.start()
    found = own.recv()
    process.join()
    return [*found, process.exitcode, Order.objects.count()]


@task
async def slow():
    """Wait for a minute, so that a test can stop the worker meanwhile."""
    import asyncio

    note("slow")
    await asyncio.sleep(60)


@task
def wait(seconds):
    """Wait for `seconds` seconds."""
    time.sleep(seconds)

"""Tasks for the tests."""

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
    """Append a line to a file that the test reads."""
    with NOTES.open("a") as file:
        print(text, file=file)


@task
def add(first, second=0):
    """Return a sum."""
    return first + second


@task(takes_context=True)
def attempt(context):
    """Return what the context says."""
    result = context.task_result
    return [context.attempt, result.id, str(result.status), result.started_at is not None]


@task(max_attempts=2, retry_wait=0)
def breaks(message):
    """Fail at each of two attempts."""
    note(f"attempt of {message}")
    raise LookupError(message)


@task
def fails():
    """Fail at the first attempt: no other number is given."""
    raise LookupError("at once")


@task
async def orders():
    """Count orders in a coroutine."""
    return await Order.objects.acount()


@task
def unstorable():
    """Return something that is no JSON."""
    return object()


@task(queue_name="mail")
def mail():
    """Return the queue."""
    return "mail"


@task
def outlives(name):
    """Note the begin; the first run ends with its process."""
    note(f"begin {name}")
    if NOTES.read_text().count(f"begin {name}") == 1:
        os.kill(os.getpid(), 9)
    return "survived"


@task
def connected():
    """Return the id of the session of the database, and whether it is usable."""
    before = connection.connection is not None
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return [before, cursor.fetchone()[0]]


def _count(pipe):
    pipe.send([connection.connection is None, Order.objects.count()])


@task
def forks():
    """Use the database in a process that is forked, and then go on with the connection of this process."""
    Order.objects.create(email="forked@example.com", amount=1)
    own, others = multiprocessing.get_context("fork").Pipe()
    process = multiprocessing.get_context("fork").Process(target=_count, args=(others,))
    process.start()
    found = own.recv()
    process.join()
    return [*found, process.exitcode, Order.objects.count()]


@task
async def slow():
    """Wait until the worker stops."""
    import asyncio

    note("slow")
    await asyncio.sleep(60)


@task
def wait(seconds):
    """Take some time."""
    time.sleep(seconds)

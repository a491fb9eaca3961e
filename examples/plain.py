"""A script with a scheduler of its own: python plain.py [URL]. Ctrl-C ends it."""

import logging
import sys
import time

import psched

logging.basicConfig(level=logging.INFO)
scheduler = psched.create_scheduler(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///plain.db")


@scheduler.bind("greet")
def greet(data):
    print(f"hello, {data}", flush=True)


@scheduler.bind("fetch")
async def fetch(data):
    """A handler fails if it returns False or raises. psched tries this task again after retry_timeout."""
    print(f"fetching {data}", flush=True)
    return scheduler.current.attempts > 1


scheduler.register("greet", cron="*/1 * * * * *", data="every second")
scheduler.push("fetch", data="https://example.com", retry=True, retry_timeout=1)

with scheduler:
    try:
        while True:
            time.sleep(1)
    except KeyboardInterrupt:
        print("stopping when the running handlers are done", flush=True)

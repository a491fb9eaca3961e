"""One of several processes that share a store: python shared.py NAME [URL]. Ctrl-C ends it.

Start this program twice: in each second one of the two processes runs the handler. If you kill one, the other goes on.
"""

import sys
import time

import psched

name = sys.argv[1]
scheduler = psched.create_scheduler(sys.argv[2] if len(sys.argv) > 2 else "redis://127.0.0.1:6379/0")


@scheduler.bind("tick")
def tick(data):
    print(f"{scheduler.current.scheduled_time} fired in {name}", flush=True)


scheduler.register("tick", cron="*/1 * * * * *", retry=True, retry_timeout=10)

with scheduler:
    try:
        while True:
            time.sleep(1)
    except KeyboardInterrupt:
        print(f"{name} stops", flush=True)

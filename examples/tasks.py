"""The tasks of the queue, which web applications submit and a daemon runs: psched -c psched.yml run"""

import os

import psched

app = psched.App()


@app.task
def mail(to: str) -> None:
    print(f"mail to {to} from {os.getpid()}", flush=True)

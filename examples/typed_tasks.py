"""Tasks with arguments and results, run by threads of this program: python typed_tasks.py [URL]"""

import sys
from dataclasses import dataclass
from datetime import date, timedelta

import psched

app = psched.App()


@dataclass
class Invoice:
    number: int
    due: date
    lines: list[str]


@app.task(max_attempts=3, retry_wait=psched.backoff(1, maximum=60))
def bill(customer: str, day: date) -> Invoice:
    return Invoice(17, day + timedelta(days=30), [f"for {customer}"])


@app.task
async def remind(task: psched.Task, invoice: Invoice) -> str:
    return f"{task.key}: invoice {invoice.number} is due on {invoice.due:%d.%m.%Y}"


def main(url: str) -> None:
    scheduler = psched.create_scheduler(url, poll_interval=0.1)
    scheduler.bind(bill)
    scheduler.bind(remind)
    psched.configure(scheduler)
    with scheduler:
        invoice = bill.submit("alice", day=date(2026, 11, 23)).result(timeout=30)
        print(invoice)
        print(remind.using(user="alice", priority=5).submit(invoice).result(timeout=30))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///typed_tasks.db")

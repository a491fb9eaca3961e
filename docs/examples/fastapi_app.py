"""A FastAPI application: uvicorn fastapi_app:app --workers 2

Each worker has an instance; the store sees to it that each occurrence fires once among them.
"""

import os
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool

import psched

scheduler = psched.create_scheduler(os.environ.get("SCHEDULER_URL", "sqlite:///fastapi.db"))


@scheduler.bind("report")
def report(data):
    print(f"report at {scheduler.current.scheduled_time} in {os.getpid()}", flush=True)


@scheduler.bind("mail")
async def mail(to):
    print(f"mail to {to} from {os.getpid()}", flush=True)


scheduler.register("report", cron="*/1 * * * * *")


@asynccontextmanager
async def lifespan(app):
    await run_in_threadpool(scheduler.start)
    yield
    await run_in_threadpool(scheduler.stop)


app = FastAPI(lifespan=lifespan)


@app.post("/mails/{to}")
def send(to: str):
    """A plain `def` runs in a thread of FastAPI's, so push may take its time there."""
    return {"key": scheduler.push("mail", data=to, retry=True, retry_timeout=30)}

"""A FastAPI application: psched -c psched.yml init && uvicorn fastapi_app:app --workers 2

Each worker has an instance of the scheduler. Each occurrence runs in only one of the workers.
`psched -c psched.yml run` runs the tasks that the application submits to the queue.
"""

import os
from typing import Annotated

from fastapi import Depends, FastAPI
from tasks import mail

import psched
import psched.asgi

scheduler = psched.create_scheduler(os.environ.get("DATABASE_URL", "sqlite:///jobs.db"), misfire_grace_time=60)
jobs = psched.asgi.lifespan(scheduler, queue="psched.yml")
app = FastAPI(lifespan=jobs)
Queue = Annotated[psched.Queue, Depends(jobs.queue)]


@scheduler.bind("report")
def report(data):
    print(f"report at {scheduler.current.scheduled_time} in {os.getpid()}", flush=True)


@scheduler.bind("thumbnail")
async def thumbnail(image):
    print(f"thumbnail of {image} in {os.getpid()}", flush=True)


scheduler.register("report", cron="*/1 * * * * *")


@app.post("/images/{image}")
async def upload(image: str):
    """Submit a task that runs in a thread of one of the workers."""
    return {"key": await scheduler.apush("thumbnail", data=image, retry=True, retry_timeout=30)}


@app.post("/mails/{to}")
async def send(to: str):
    """Submit a task that runs in the daemon."""
    task = await mail.asubmit(to=to)
    return {"key": task.key}


@app.get("/mails/{key}")
async def status(key: str, queue: Queue):
    return {"status": await queue[key].astatus()}

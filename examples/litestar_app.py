"""A Litestar application: psched -c psched.yml init && uvicorn litestar_app:app --workers 2"""

import os

from litestar import Litestar, get, post
from litestar.di import NamedDependency, Provide
from tasks import mail

import psched
import psched.asgi

scheduler = psched.create_scheduler(os.environ.get("DATABASE_URL", "sqlite:///jobs.db"), misfire_grace_time=60)
jobs = psched.asgi.lifespan(scheduler, queue="psched.yml")


@scheduler.bind("report")
def report(data):
    print(f"report at {scheduler.current.scheduled_time} in {os.getpid()}", flush=True)


scheduler.register("report", cron="*/1 * * * * *")


@post("/mails/{to:str}")
async def send(to: str) -> dict[str, str]:
    task = await mail.asubmit(to=to)
    return {"key": task.key}


@get("/mails/{key:str}", dependencies={"queue": Provide(jobs.queue)})
async def status(key: str, queue: NamedDependency[psched.Queue]) -> dict[str, str]:
    return {"status": await queue[key].astatus()}


app = Litestar([send, status], lifespan=[jobs])

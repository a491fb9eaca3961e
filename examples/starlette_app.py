"""A Starlette application: psched -c psched.yml init && uvicorn starlette_app:app --workers 2"""

import os

from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from tasks import mail

import psched
import psched.asgi

scheduler = psched.create_scheduler(os.environ.get("DATABASE_URL", "sqlite:///jobs.db"), misfire_grace_time=60)
jobs = psched.asgi.lifespan(scheduler, queue="psched.yml")


@scheduler.bind("report")
def report(data):
    print(f"report at {scheduler.current.scheduled_time} in {os.getpid()}", flush=True)


scheduler.register("report", cron="*/1 * * * * *")


async def send(request):
    task = await mail.asubmit(to=request.path_params["to"])
    return JSONResponse({"key": task.key})


app = Starlette(routes=[Route("/mails/{to}", send, methods=["POST"])], lifespan=jobs)

"""Web applications of users, of which type checkers must accept each line.

Not run: checked in a virtualenv with the wheel.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI
from flask import Flask
from litestar import Litestar
from litestar.di import Provide
from starlette.applications import Starlette

import psched
import psched.asgi
from psched.contrib.flask import Psched

scheduler = psched.create_scheduler("redis://127.0.0.1:6379/0")
jobs: psched.asgi.Lifespan = psched.asgi.lifespan(scheduler, queue={"type": "rdb", "url": "sqlite:///psched.db"})
fastapi_app = FastAPI(lifespan=jobs)
starlette_app = Starlette(lifespan=jobs)
litestar_app = Litestar(lifespan=[jobs], dependencies={"queue": Provide(jobs.queue)})
Queue = Annotated[psched.Queue, Depends(jobs.queue)]


@fastapi_app.post("/mails/{to}")
async def send(to: str, queue: Queue) -> list[str]:
    task = await queue.asubmit("key", "mail", {"to": to})
    pushed: str = await scheduler.apush("mail", data=to, delay=5, retry=True, retry_timeout=30)
    return [task.key, pushed]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
    async with jobs(app):
        yield


FastAPI(lifespan=lifespan)

flask_app = Flask(__name__)
extension = Psched(flask_app)
extension.init_app(flask_app)
flask_queue: psched.Queue = extension.queue

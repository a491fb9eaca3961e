"""A Flask application: flask --app flask_app psched init && gunicorn --workers 2 --preload flask_app:app

`flask --app flask_app psched run` runs the tasks that the application submits, in the context of the application.
"""

import os

from flask import Flask, current_app, jsonify

import psched
from psched.contrib.flask import Psched

tasks = psched.App()
app = Flask(__name__)
app.config["GREETING"] = "hello"
app.config["PSCHED"] = {
    "type": "rdb",
    "url": os.environ.get("DATABASE_URL", "sqlite:///jobs.db"),
    "app": "flask_app:tasks",
    "poll_interval": 0.5,
    "schedules": {},
    "queue": {},
}
jobs = Psched(app)


@tasks.task
def mail(to: str) -> None:
    print(f"mail to {to}: {current_app.config['GREETING']}", flush=True)


@tasks.task("report")
def report(task: psched.Task) -> None:
    print(f"report at {task.scheduled_time} in {os.getpid()}", flush=True)


@app.post("/mails/<to>")
def send(to):
    return jsonify(key=mail.submit(to=to).key)

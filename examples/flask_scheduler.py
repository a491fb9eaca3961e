"""A Flask application: gunicorn --workers 2 --config flask_scheduler_gunicorn.py flask_scheduler:app

Each worker starts the scheduler after the fork, so this also works with --preload.
"""

import os

from flask import Flask, jsonify

import psched

scheduler = psched.create_scheduler(os.environ.get("SCHEDULER_URL", "sqlite:///flask.db"))
app = Flask(__name__)


@scheduler.bind("report")
def report(data):
    print(f"report at {scheduler.current.scheduled_time} in {os.getpid()}", flush=True)


@scheduler.bind("mail")
def mail(to):
    print(f"mail to {to} from {os.getpid()}", flush=True)


scheduler.register("report", cron="*/1 * * * * *")


@app.post("/mails/<to>")
def send(to):
    return jsonify(key=scheduler.push("mail", data=to, retry=True, retry_timeout=30))

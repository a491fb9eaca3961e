"""Gunicorn's configuration for flask_scheduler: each worker starts and stops its own scheduler."""


def post_worker_init(worker):
    from flask_scheduler import scheduler

    scheduler.start()


def worker_exit(server, worker):
    from flask_scheduler import scheduler

    scheduler.stop(timeout=20)

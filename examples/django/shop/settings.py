"""Settings of the sample project. DATABASE_URL names a server; without it, a SQLite file is used."""

import os
from pathlib import Path
from urllib.parse import urlsplit

import django

BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = "only for this sample"
DEBUG = True
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "shop.urls"
USE_TZ = True
TIME_ZONE = "Europe/Paris"
EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    *(["django_tasks"] if django.VERSION < (6,) else []),  # the backport of Django 6's tasks
    "psched.contrib.django",
    "orders",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": BASE_DIR / "shop.sqlite3",
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},  # writers wait for one another
    }
}
if "DATABASE_URL" in os.environ:
    _url = urlsplit(os.environ["DATABASE_URL"])
    DATABASES["default"] = {
        "ENGINE": f"django.db.backends.{_url.scheme}",
        "NAME": _url.path.removeprefix("/"),
        "USER": _url.username,
        "PASSWORD": _url.password,
        "HOST": _url.hostname,
        "PORT": _url.port,
    }

TASKS = {
    "default": {
        "BACKEND": "psched.contrib.django.backend.PschedBackend",
        "QUEUES": ["default", "mail"],
    }
}
PSCHED = {
    "database": "default",  # psched's tables are in this database of DATABASES
    "app": "orders.jobs:app",  # psched's own handlers, besides the functions that @task decorates
    "processors": 2,
    "log": "psched.log",
    "pid_file": "psched.pid",
}

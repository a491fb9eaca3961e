"""The configuration of the Django app, for INSTALLED_APPS."""

from __future__ import annotations

from django.apps import AppConfig


class PschedConfig(AppConfig):
    name = "psched.contrib.django"
    label = "psched"
    verbose_name = "psched"

    def ready(self) -> None:
        """Register the system checks, and make the queue that PSCHED configures the default queue of this process."""
        from psched.application.default_queue import default_queue  # noqa: PLC0415 – when Django is set up
        from psched.contrib.django import checks, clients  # noqa: F401, PLC0415 – as above

        default_queue.provide(clients.queue)

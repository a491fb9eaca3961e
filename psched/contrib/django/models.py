"""What the admin pages and their permissions refer to. psched reads its rows itself, without Django's ORM."""

from __future__ import annotations

from typing import Any

from django.db import models


class NoRows(models.Manager[Any]):
    """Finds nothing, so that `dumpdata` and the like look for no table."""

    def get_queryset(self) -> models.QuerySet[Any]:
        """Return no object."""
        return super().get_queryset().none()


class _Row(models.Model):
    key: models.CharField[str, str] = models.CharField(max_length=255, primary_key=True)
    objects = NoRows()

    class Meta:
        abstract = True
        managed = False
        base_manager_name = "objects"
        default_permissions = ("view", "change")

    def __str__(self) -> str:
        return str(self.key)


class Schedule(_Row):
    """A schedule of psched. `view` and `change` are the permissions to see schedules, and to act on them."""


class Task(_Row):
    """A task of psched's queue. `view` and `change` are the permissions to see tasks, and to act on them."""

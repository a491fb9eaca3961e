"""The models that the admin pages and their permissions need. psched reads its rows itself, without Django's ORM."""

from __future__ import annotations

from typing import Any

from django.db import models


class NoRows(models.Manager[Any]):
    """A manager that finds nothing, so that `dumpdata` and similar commands read no table."""

    def get_queryset(self) -> models.QuerySet[Any]:
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
    """A schedule of psched. This model is only for the admin and its permissions: `objects` finds no row.

    The permission `view` allows users to see schedules, `change` also to perform actions on them.
    """


class Task(_Row):
    """A task of psched's queue. This model is only for the admin and its permissions: `objects` finds no row.

    The permission `view` allows users to see tasks, `change` also to perform actions on them.
    """

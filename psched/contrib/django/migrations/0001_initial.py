"""Creates psched's tables, as `psched init` does."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

from psched.contrib.django import clients, configuration


def make_tables(apps: Any, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Create psched's tables that are in the database of `schema_editor`.

    Django calls this for each database that the routers allow. Tables outside of DATABASES are created together with
    those of the default database.
    """
    for name, _ in configuration.settings().named_sections:
        if (configuration.alias_of(name) or "default") == schema_editor.connection.alias:
            clients.of(name).store.create_tables()


class Migration(migrations.Migration):
    """Runs outside of a transaction. Several hosts may migrate at the same time; psched's steps are safe for that."""

    initial = True
    atomic = False

    operations = [  # noqa: RUF012 – as Django declares it
        *(
            migrations.CreateModel(
                name,
                [("key", models.CharField(max_length=255, primary_key=True, serialize=False))],
                {"managed": False, "base_manager_name": "objects", "default_permissions": ("view", "change")},
            )
            for name in ("Schedule", "Task")
        ),
        migrations.RunPython(make_tables, migrations.RunPython.noop),
    ]

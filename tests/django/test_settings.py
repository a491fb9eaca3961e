"""PSCHED in Django's settings: the meaning of its keys, and the messages about mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.django.project import Project

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

_DATABASES = """
DATABASES |= {
    "server": {
        "ENGINE": "django.db.backends.postgresql", "NAME": "shop", "USER": "ann", "PASSWORD": "a@b:c/${HOME}",
        "HOST": "db.example.com", "PORT": 5433,
        "OPTIONS": {"sslmode": "require", "pool": True, "connect_timeout": 3},
    },
    "socket": {"ENGINE": "django.db.backends.postgresql", "NAME": "shop", "HOST": "/run/postgresql"},
    "role": {"ENGINE": "django.db.backends.postgresql", "NAME": "shop", "OPTIONS": {"assume_role": "owner"}},
    "dummy": {"ENGINE": "django.db.backends.dummy"},
    "memory": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
    "uri": {"ENGINE": "django.db.backends.sqlite3", "NAME": "file:/tmp/x?mode=rwc"},
}
"""
_CHECK = """
from django.conf import settings
from django.test import override_settings
from psched.contrib.django import checks, configuration
found = []
for psched in json.loads(CASES):
    with override_settings(PSCHED=psched):
        if psched == "missing":
            del settings.PSCHED
        found.append([message.msg for message in checks.check_settings(None)])
print(json.dumps(found))
"""
_URLS = """
from django.test import override_settings
from psched.contrib.django import configuration
found = []
for psched in json.loads(CASES):
    with override_settings(PSCHED=psched):
        settings = configuration.settings()
        section = settings.queue
        found.append([section.type, section.url, section.timezone, section.retention_time, list(section.app)])
print(json.dumps(found))
"""
_MISTAKES = [
    ("missing", 'PSCHED: missing in the settings; add PSCHED = {"database": "default"}'),
    ([], "PSCHED: expected a dict, got list"),
    ({"database": "defualt"}, "PSCHED: database: 'defualt' is not an alias of DATABASES; did you mean 'default'?"),
    (
        {"database": "default", "url": "sqlite:///x"},
        "PSCHED: give either `database`, an alias of DATABASES, or `url`",
    ),
    ({"database": "dummy"}, "PSCHED: database: 'dummy' is unknown, which psched does not support"),
    ({"database": "uri"}, "PSCHED: the NAME 'file:/tmp/x?mode=rwc' of DATABASES is a URI; write the path of the file"),
    ({"database": "role"}, "PSCHED: psched does not know the option 'assume_role' of DATABASES['role']; write `url`"),
    ({"database": "memory"}, "PSCHED: the database 'memory' is in memory, so only this process can run the tasks"),
    ({"procesors": 2}, "PSCHED: procesors: unknown key; did you mean 'processors'?"),
    ({"processors": 0}, "PSCHED: processors: expected a whole number ≥ 1, got 0"),
    ({"queue": {"max_attempts": "x"}}, "PSCHED: queue.max_attempts: expected a whole number ≥ 1 or none, got 'x'"),
    ({"queue": []}, "PSCHED: queue: expected a mapping of settings, got list"),
    ({"url": "redis://127.0.0.1:1/0"}, "PSCHED: type: missing; expected rdb, redis or rdb_compat"),
]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path, None, _DATABASES)


def test_mistakes_are_named_with_the_remedy(project: Project) -> None:
    cases = json.dumps([case for case, _ in _MISTAKES])
    found = project.python(f"CASES = {cases!r}{_CHECK}")
    for messages, (case, expected) in zip(found, _MISTAKES, strict=True):
        assert len(messages) == 1 and messages[0].startswith(expected), (case, messages)


def test_the_database_is_taken_from_the_settings(project: Project) -> None:
    cases = [{}, {"database": "server"}, {"database": "socket", "app": ["a:b"], "retention_time": 5, "timezone": "UTC"}]
    tasks = "psched.contrib.django.task_handler:tasks"
    query = "connect_timeout=3&sslmode=require"
    assert project.python(f"CASES = {json.dumps(cases)!r}{_URLS}") == [
        ["rdb", f"sqlite:///{project.folder}/shop.sqlite3", "Europe/Paris", 86400.0, [tasks]],
        [
            "rdb",
            f"postgresql://ann:a%40b%3Ac%2F%24%7BHOME%7D@db.example.com:5433/shop?{query}",
            "Europe/Paris",
            86400.0,
            [tasks],
        ],
        ["rdb", "postgresql:///shop?host=%2Frun%2Fpostgresql", "UTC", 5.0, ["a:b", tasks]],
    ]


def test_mistakes_in_the_options_of_the_backend_are_named(project: Project) -> None:
    for options, expected in (
        ({"max_atempts": 1}, "TASKS['default']: OPTIONS: unknown option 'max_atempts' (did you mean 'max_attempts'?)"),
        ({"max_attempts": 0}, "TASKS['default']: OPTIONS: max_attempts must be a whole number from 1"),
        ({"on_commit": "yes"}, "TASKS['default']: OPTIONS: on_commit must be True or False, got 'yes'"),
        ({"retry_wait": {"frist": 1}}, "TASKS['default']: OPTIONS: unknown key 'frist' (did you mean 'first'?)"),
    ):
        project.configure(f'TASKS["default"]["OPTIONS"] = {options!r}\n')
        assert expected in project.manage("check", code=1)


def test_missing_tables_are_named_with_the_remedy(project: Project) -> None:
    enqueue = """
from promises.tasks import add
try:
    add.enqueue(1)
except Exception as error:
    print(json.dumps(repr(error)))
"""
    expected = "psched's tables do not exist in the database 'default'; run: manage.py migrate --database default"
    assert project.python(enqueue) == f'ConfigError("{expected}")'
    assert "the table psched_queue does not exist; create it with: psched init" in project.manage(
        "psched", "queue", "list", code=1
    )
    project.manage("migrate", "--verbosity=0")
    project.python("from django.db import connection\nconnection.cursor().execute('DROP TABLE psched_queue')")
    assert "(psched.E002) the table psched_queue does not exist" in project.manage(
        "check", "--database", "default", code=1
    )


def test_commands_refuse_another_configuration(project: Project) -> None:
    refusal = "remove -c and -e: the configuration is PSCHED in Django's settings (see --settings)"
    assert refusal in project.manage("psched", "list", "-c", "etc/psched.yml", code=1)
    assert refusal in project.manage("psched", "run", "-e", "production", code=1)
    assert refusal in project.manage("pschedd", "start", "-c", "etc/psched.yml", code=6)
    assert "No such command 'lst'" in project.manage("psched", "lst", code=2)
    project.configure("raise RuntimeError('broken settings')")
    assert "RuntimeError: broken settings" in project.manage("psched", "run", code=1)


def test_an_argument_named_run_does_not_replace_the_process(project: Project) -> None:
    project.manage("migrate", "--verbosity=0")
    program = """
from django.core.management import call_command
call_command("psched", "add", "run", "promises.tasks.add", "@daily", "{}")
call_command("psched", "show", "run")
print(json.dumps("still here"))
"""
    assert project.python(program) == "still here"


def test_a_database_that_routers_keep_from_psched_is_named(project: Project) -> None:
    (project.folder / "promises/routers.py").write_text(
        "class Router:\n    def allow_migrate(self, db, app_label, **hints):\n        return app_label != 'psched'\n"
    )
    project.configure('DATABASE_ROUTERS = ["promises.routers.Router"]\n')
    assert "(psched.W001) PSCHED: no router lets the app psched migrate on 'default'" in project.manage("check")
    project.manage("migrate", "--verbosity=0")
    assert "the table psched_schedules does not exist" in project.manage("psched", "list", code=1)


def test_tables_are_made_only_in_the_database_that_is_named(project: Project) -> None:
    project.configure(
        'DATABASES["jobs"] = {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "jobs.sqlite3"}\n'
        'PSCHED["database"] = "jobs"\n'
    )
    project.manage("migrate", "--verbosity=0")
    expected = "psched's tables do not exist in the database 'jobs'; run: manage.py migrate --database jobs"
    assert expected in project.manage("shell", "-c", "from promises.tasks import add; add.enqueue(1)", code=1)
    project.manage("migrate", "--verbosity=0", "--database", "jobs")
    project.manage("shell", "-c", "from promises.tasks import add; add.enqueue(1)")
    assert "default:promises.tasks.add" in project.manage("psched", "queue", "list")

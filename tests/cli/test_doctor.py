"""psched doctor: each finding is ok, or says what to do. The exit code is 1 if a finding is not ok."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from typing import Any

import pytest

from faultlab import prerequisites
from faultlab.pgbouncer import PgBouncer
from faultlab.servers import Server
from faultlab.small_disk import SmallDisk, can_mount
from psched.config import load
from psched.insight import open_insight
from psched.insight.doctor import clock_finding
from tests.cli.commands import Commands, Outcome

APP = "import psched\napp = psched.App()\n@app.task('t')\ndef handle(task): ...\n"


def findings(outcome: Outcome) -> dict[str, Any]:
    return {finding["subject"]: (finding["ok"], finding["message"]) for finding in outcome.json}


def test_everything_is_ok_on_each_database(fresh: Commands, database: str) -> None:
    (fresh.folder / "jobs.py").write_text(APP)
    fresh.use(database, "  app: jobs:app\n  include: ..\n")
    fresh.ok("init")
    found = findings(fresh.ok("doctor", "--json"))
    assert {"config", "application", "tz database", "database", "table", "indexes", "clocks"} <= found.keys()
    assert all(ok for ok, _ in found.values())
    assert found["application"] == (True, "jobs:app")
    assert "secret" not in str(found)


def test_insight_has_the_same_checks_as_data_and_writes_nothing(fresh: Commands, database: str) -> None:
    fresh.configure(f"development: {{type: rdb, url: '{database}', schedules: {{}}, queue: {{}}}}")
    with open_insight(load(fresh.folder / "etc" / "psched.yml", "development")) as insight:
        missing = {finding.subject: finding for finding in insight.doctor() if finding.level == "failed"}
        assert missing.keys() == {"table", "queue table"}
        assert "psched init" in missing["table"].text
        fresh.ok("init")
        fresh.ok("add", "late", "mail", "* * * * *", "{}", "-s", str(int(time.time()) - 3600))
        found = [finding for finding in insight.doctor() if finding.subject != "pooler"]
    printed = fresh("doctor", "--json").json
    assert {each["subject"] for each in printed} - {each.subject for each in found} == {
        "application", "writing", "queue writing", "pooler", "queue pooler",
    } & {each["subject"] for each in printed}  # fmt: skip
    assert {each["subject"]: each["level"] for each in printed}.items() >= {
        finding.subject: finding.level for finding in found
    }.items()
    [late] = [finding for finding in found if finding.level == "failed"]
    assert (late.subject, late.remedy) == ("overdue", "no node is running; start one: psched run, or pschedd start")
    assert late.message.endswith("late and was not started")


def test_a_database_that_is_away_is_a_finding_of_insight(fresh: Commands) -> None:
    fresh.use("postgresql://psched:s3cret@127.0.0.1:1/psched")
    with open_insight(load(fresh.folder / "etc" / "psched.yml", "development")) as insight:
        [away] = [finding for finding in insight.doctor() if not finding.ok]
    assert away.subject == "database"
    assert "127.0.0.1:1/psched is not available" in away.message
    assert "s3cret" not in away.message


def test_a_function_that_cannot_be_a_handler_is_named(psched: Commands) -> None:
    text = 'from psched import App\napp = App()\n@app.task("mail")\ndef send(task):\n    yield\n'
    (psched.folder / "generates.py").write_text(text)
    psched.use("sqlite:///../psched.db", "  app: generates:app\n  include: ..\n")
    ok, message = findings(psched("doctor", "--json"))["application"]
    assert not ok
    assert "send is a generator" in message
    assert "generates.py:3" in message


def test_each_finding_is_a_line_that_begins_with_ok_or_failed(psched: Commands) -> None:
    psched.use("sqlite:///../psched.db", "  app: absent:app\n")
    outcome = psched("doctor")
    words = {line.split(maxsplit=2)[1]: line.split()[0] for line in outcome.out.splitlines()}
    assert outcome.code == 1
    assert (words["config"], words["application"], words["database"]) == ("ok", "FAILED", "ok")


def test_types_that_match_no_route_are_reported_with_the_routes(psched: Commands) -> None:
    (psched.folder / "one_route.py").write_text(
        "import psched\n\napp = psched.App()\n\n\n@app.task('mail')\ndef mail(task): ...\n"
    )
    psched.use("sqlite:///../psched.db", "  app: one_route:app\n  include: ..\n")
    words = "one_route:app; types: nomatch matches no type that the application routes (mail)"
    for types, ok in (("nomatch", False), ("mail,nomatch", True)):
        found_ok, message = findings(psched("--types", types, "doctor", "--json"))["application"]
        assert (found_ok, message.startswith(words)) == (ok, True)
    assert findings(psched("--types", "mail", "doctor", "--json"))["application"] == (True, "one_route:app")


def test_a_wrong_configuration_is_the_one_finding(fresh: Commands) -> None:
    fresh.configure("development: {type: rdb}")
    outcome = fresh("doctor", "--json")
    assert outcome.code == 1
    assert list(findings(outcome)) == ["config"]
    assert "url: missing" in outcome.out


def test_an_env_file_that_everybody_may_read_is_a_warning(psched: Commands) -> None:
    secrets = psched.folder / "etc/environment"
    secrets.write_text("FILE=psched.db\n")
    psched.use("sqlite:///../${FILE}", "  env_file: environment\n")
    for mode, warns in ((0o644, True), (0o640, False)):
        secrets.chmod(mode)
        found = findings(psched.ok("doctor", "--json"))
        assert ("env_file" in found) == warns
        assert found["database"][0]
        assert not warns or found["env_file"] == (
            True,
            f"every user of this host may read {secrets}; chmod o= {secrets}",
        )


def test_a_missing_table_is_reported_with_its_remedy(fresh: Commands, database: str) -> None:
    fresh.use(database)
    outcome = fresh("doctor", "--json")
    assert outcome.code == 1
    assert any(not finding["ok"] and "psched init" in finding["message"] for finding in outcome.json)


def test_a_database_that_is_away_is_reported_without_its_password(fresh: Commands) -> None:
    fresh.use("postgresql://psched:s3cret@127.0.0.1:1/psched")
    outcome = fresh("doctor", "--json")
    assert outcome.code == 1
    ok, message = findings(outcome)["database"]
    assert not ok
    assert "127.0.0.1:1/psched is not available" in message
    assert "s3cret" not in outcome.out


def test_a_database_that_cannot_be_written_is_reported(fresh: Commands, mariadb: Server) -> None:
    with mariadb.database() as url:
        fresh.use(url)
        fresh.ok("init")
        assert findings(fresh.ok("doctor", "--json"))["writing"] == (True, "psched_schedules can be written")
        mariadb.set_read_only()
        try:
            outcome = fresh("doctor", "--json")
        finally:
            mariadb.set_writable()
    ok, message = findings(outcome)["writing"]
    assert (outcome.code, ok) == (1, False)
    assert "read-only" in message


def test_a_replica_of_redis_is_reported(fresh: Commands, redis: Server) -> None:
    with redis.database() as url:
        fresh.configure(f"development: {{type: redis, url: '{url}'}}")
        fresh.ok("init")
        redis.set_read_only()
        try:
            outcome = fresh("doctor", "--json")
        finally:
            redis.set_writable()
    assert not findings(outcome)["writing"][0]


def test_a_full_disk_of_sqlite_is_reported_while_a_worker_has_the_file_open(fresh: Commands) -> None:
    if not can_mount():
        prerequisites.not_run("only root on Linux can mount a small disk")
    with SmallDisk(8) as disk:
        fresh.use(f"sqlite:///{disk.path}/psched.db")
        fresh.ok("init")
        with closing(sqlite3.connect(disk.path / "psched.db")) as worker:
            worker.execute("SELECT count(*) FROM psched_schedules").fetchone()
            assert findings(fresh.ok("doctor", "--json"))["writing"] == (True, "psched_schedules can be written")
            disk.fill()
            outcome = fresh("doctor", "--json")
    ok, message = findings(outcome)["writing"]
    assert (outcome.code, ok) == (1, False)
    assert message == f"the disk of {disk.path}/psched.db is full, so workers wait; free at least 1 MB"


class Clock:
    """A store that has only a clock."""

    def __init__(self, now: float) -> None:
        self.now = lambda: now


@pytest.mark.parametrize(
    ("ahead", "ok", "words"),
    [(600, False, "600.0 s ahead of"), (-600, False, "600.0 s behind"), (0.5, True, "0.5 s ahead of")],
)
def test_clocks_that_differ_are_reported(monkeypatch: pytest.MonkeyPatch, ahead: float, ok: bool, words: str) -> None:
    monkeypatch.setattr("time.time", lambda: 1_000_000 + ahead)
    finding = clock_finding(Clock(1_000_000))  # type: ignore[arg-type]
    assert (finding.ok, words in finding.message) == (ok, True)


def test_what_is_later_than_its_alert_after_is_a_failure(psched: Commands) -> None:
    none = (True, "no occurrence is more than 10 min late, and none is later than its alert_after")
    assert findings(psched.ok("doctor", "--json"))["overdue"] == none
    late = int(time.time()) - 90
    psched.ok("add", "late", "t", "* * * * * *", "{}", "-s", str(late), "--alert-after", "60")
    psched.ok("add", "other", "t", "* * * * * *", "{}", "-s", str(late))
    outcome = psched("doctor", "--json")
    ok, message = findings(outcome)["overdue"]
    assert (outcome.code, ok) == (1, False)
    assert message.startswith("'late' (type 't'): its occurrence of 20")
    assert message.endswith("late and was not started; no node is running; start one: psched run, or pschedd start")
    psched.ok("pause", "late")
    assert findings(psched("doctor", "--json"))["overdue"] == none


def test_hooks_that_only_schedules_have_are_reported(psched: Commands) -> None:
    url, hooks = "sqlite:///../psched.db", "  hooks: {billing: [/bin/true]}\n"
    psched.use(url, hooks)
    psched.ok("add", "right", "t", "@daily", "{}", "--on-failure", "billing")
    assert "hooks" not in findings(psched("doctor", "--json"))
    for key in ("one", "two"):
        psched("add", key, "t", "@daily", "{}", "--on-failure", "biling")
    for more, level in (("", "failed"), ("  on_failure: [/bin/true]\n", "warning")):
        psched.use(url, hooks + more)
        [found] = [each for each in psched("doctor", "--json").json if each["subject"] == "hooks"]
        assert "does not have: 'biling' (2 schedules, such as " in found["message"]
        remedy = "add them to `hooks:` (which has billing), or `psched modify KEY --on-failure NAME`"
        assert (found["level"], found["remedy"]) == (level, remedy)


def test_schedules_that_cannot_be_run_are_reported_before_they_are_due(fresh: Commands) -> None:
    fresh.use("sqlite:///../psched.db")
    fresh.ok("init")
    for key in ("a", "b", "c", "d", "good"):
        fresh.ok("add", key, "t", "@yearly", "{}")
    assert "broken" not in findings(fresh.ok("doctor", "--json"))
    with closing(sqlite3.connect(fresh.folder / "psched.db")) as connection, connection:
        connection.execute("UPDATE psched_schedules SET cron = '61 * * * *' WHERE key = 'a'")
    outcome = fresh("doctor", "--json")
    ok, message = findings(outcome)["broken"]
    assert (outcome.code, ok) == (1, False)
    assert message.startswith("1 schedule cannot be run: 'a' (")
    assert "61" in message
    with closing(sqlite3.connect(fresh.folder / "psched.db")) as connection, connection:
        connection.execute("UPDATE psched_schedules SET data = '[' WHERE key <> 'good'")
    ok, message = findings(fresh("doctor", "--json"))["broken"]
    assert message.startswith("4 schedules cannot be run: 'a' (")
    assert message.endswith(" and 1 more; repair or delete them; psched list --state broken lists them")


def test_a_pooler_is_reported_and_a_wrong_mode_with_the_remedy(fresh: Commands, postgresql: Server) -> None:
    with postgresql.database() as url, PgBouncer(postgresql, "transaction") as pooler:
        fresh.use(url)
        fresh.ok("init")
        fresh.use(pooler.url(url.rpartition("/")[2]))
        ok, message = findings(fresh.ok("doctor", "--json"))["pooler"]
        assert ok
        assert "finds new rows only by polling" in message
        fresh.use(pooler.url(url.rpartition("/")[2]), "  pooler: session\n")
        ok, message = findings(fresh("doctor", "--json"))["pooler"]
        assert not ok
        assert "two connections share one session" in message
        pooler.stop()
        pooler.mode = "statement"
        pooler.start()
        fresh.use(pooler.url(url.rpartition("/")[2]))
        ok, message = findings(fresh("doctor", "--json"))["pooler"]
        assert not ok
        assert "allows no transactions; set its pool_mode = transaction" in message

"""psched plan, apply, diff, export and rollback, as people and pipelines call them."""

from __future__ import annotations

import json
import re

from tests.cli.commands import Commands

_FILE = """\
owner: billing
schedules:
  invoices: {type: report, cron: 0 3 * * *, timezone: Europe/Berlin, data: {copies: 2}}
  rates: {type: load, every: 15m, tags: [market]}
"""
_APP = """\
import psched

app = psched.App(owner="shop")

@app.schedule(every="15m", key="rates")
@app.task("load")
def load(currency: str = "EUR") -> None: ...
"""


def test_a_plan_says_what_changes_and_apply_changes_it(psched: Commands) -> None:
    (psched.folder / "jobs.yml").write_text(_FILE)
    outcome = psched("plan", "jobs.yml", "--out", "plan.json")
    code, out = outcome.code, outcome.out
    assert code == 3
    lines = out.splitlines()
    database = f"sqlite:///{psched.folder}/psched.db"
    assert lines[:2] == [
        f"jobs.yml: schedules of the owner 'billing' in {database}",
        "+ invoices: report, 0 3 * * * Europe/Berlin",
    ]
    assert lines[2].startswith("    gains 7 runs in 7 days: ")
    assert lines[-1] == "plan: 2 to add, 0 to modify, 0 to delete, 0 unchanged"
    applied = psched.ok("apply", "--plan", "plan.json")
    assert applied.out.splitlines()[-1] == f"applied to {database}: 2 added, 0 modified, 0 deleted"
    assert applied.err == ""
    assert psched.ok("plan", "jobs.yml").out.splitlines()[-1] == "plan: 0 to add, 0 to modify, 0 to delete, 2 unchanged"
    outcome = psched("apply", "--plan", "plan.json")
    code, error = outcome.code, outcome.err
    assert code == 1
    assert "'invoices' was added after the plan was made" in error
    assert "nothing was applied" in error
    (psched.folder / "jobs.yml").write_text(_FILE.replace("0 3", "0 4").replace("  rates", "  other"))
    found = psched("plan", "jobs.yml", "--prune", "--json").json
    assert found["database"] == database
    assert [(each["action"], each["key"]) for each in found["changes"]] == [
        ("modify", "invoices"),
        ("add", "other"),
        ("delete", "rates"),
    ]
    [difference] = found["changes"][0]["differences"]
    assert difference == {"name": "cron", "before": "0 3 * * *", "after": "0 4 * * *"}
    assert (found["changes"][0]["gained"]["count"], found["changes"][0]["lost"]["count"]) == (7, 7)
    assert (found["changes"][2]["lost"]["count"], found["changes"][2]["version"] is None) == (672, False)
    assert "not declared, kept (1; --prune deletes them): rates" in psched("plan", "jobs.yml").out


def test_a_growing_retry_wait_is_an_object_in_json(psched: Commands) -> None:
    (psched.folder / "jobs.yml").write_text("owner: us\nschedules: {a: {type: t, every: 1h, retry_wait: 10s..5m}}\n")
    grown = {"first": 10, "factor": 2.0, "limit": 300, "jitter": 0.2}
    [change] = psched("plan", "jobs.yml", "--json", "--out", "plan.json").json["changes"]
    assert change["definition"]["retry_wait"] == grown
    psched.ok("apply", "--plan", "plan.json")
    assert psched.ok("export", "--json").json["schedules"][0]["retry_wait"] == grown
    (psched.folder / "jobs.yml").write_text("owner: us\nschedules: {a: {type: t, every: 1h}}\n")
    [drift] = psched("diff", "jobs.yml", "--json").json
    assert drift["differences"] == [{"name": "retry_wait", "declared": None, "database": grown}]


def test_a_saved_plan_is_refused_for_a_file_that_needs_another_one(psched: Commands) -> None:
    (psched.folder / "jobs.yml").write_text(_FILE)
    psched("plan", "jobs.yml", "--out", "plan.json")
    psched.ok("apply", "jobs.yml", "--plan", "plan.json")
    (psched.folder / "jobs.yml").write_text(_FILE.replace("0 3", "0 4"))
    psched("plan", "jobs.yml", "--out", "plan.json")
    (psched.folder / "jobs.yml").write_text(_FILE.replace("0 3", "0 5"))
    outcome = psched("apply", "jobs.yml", "--plan", "plan.json")
    code, error = outcome.code, outcome.err
    assert (code, "a plan of jobs.yml would now make other changes; nothing was applied" in error) == (1, True)
    for text, words in (
        ("{", "not valid JSON"),
        ('{"format": 7}', "format: expected 1, got 7"),
        ("[" * 100_000, "not valid JSON"),
        (_broken(psched), "has the unknown option 'x'; make a new plan"),
        ('{"format": 1}', "'changes' is missing; make a new plan"),
        ('{"format": 1, "changes": [], "source": "x", "owners": [], "at": 0}', "'database' is missing; make"),
        ('{"format": 1, "changes": [7]}', "a value has the wrong type; make"),
        ('{"format": 1, "changes": [{"action": "add", "key": [1], "version": null, "definition": {}}]}', "key must be"),
    ):
        (psched.folder / "plan.json").write_text(text)
        outcome = psched("apply", "--plan", "plan.json")
        code, error = outcome.code, outcome.err
        assert (code, words in error, "Traceback" in error) == (1, True, False)


def test_a_plan_for_another_database_is_applied_with_a_warning(psched: Commands) -> None:
    (psched.folder / "jobs.yml").write_text(_FILE)
    psched("plan", "jobs.yml", "--out", "plan.json")
    plan = json.loads((psched.folder / "plan.json").read_text()) | {"database": "postgresql://me:***@elsewhere/jobs"}
    (psched.folder / "plan.json").write_text(json.dumps(plan))
    warned = psched("apply", "--plan", "plan.json").err
    assert warned.startswith("warning: the plan was made for postgresql://me:***@elsewhere/jobs; this database is ")


def _broken(psched: Commands) -> str:
    found = json.loads((psched.folder / "plan.json").read_text())
    found["changes"][0]["definition"]["x"] = 1
    return json.dumps(found)


def test_faults_name_their_line_and_owners_their_schedules(psched: Commands) -> None:
    (psched.folder / "jobs.yml").write_text(_FILE.replace("0 3 * * *", "61 3 * * *"))
    outcome = psched("plan", "jobs.yml")
    code, error = outcome.code, outcome.err
    assert (code, error.startswith("psched: jobs.yml:3: schedules.invoices.cron: ")) == (1, True)
    psched.ok("add", "rates", "load", "@every 1h", "{}")
    (psched.folder / "jobs.yml").write_text(_FILE)
    outcome = psched("apply", "jobs.yml")
    code, error = outcome.code, outcome.err
    assert code == 1
    assert "jobs.yml:4: schedules.rates: the schedule exists and has no owner, not 'billing'" in error
    assert psched.ok("apply", "jobs.yml", "--adopt").out.splitlines()[-1].endswith(": 1 added, 1 modified, 0 deleted")
    for arguments in (("plan",), ("plan", "jobs.yml", "--app", "x:y"), ("rollback", "--owner", "x")):
        assert psched(*arguments).code == 2


def test_an_app_declares_schedules(psched: Commands) -> None:
    (psched.folder / "shop.py").write_text(_APP)
    psched.ok("apply", "--app", "shop:app", "-I", ".")
    [row] = psched("list", "--json").json
    assert (row["key"], row["cron"], row["type"], row["owner"]) == ("rates", "@every 15m", "load", "shop")
    assert psched("plan", "--app", "shop:app", "-I", ".").code == 0


def test_a_time_in_a_difference_is_written_as_in_a_file(psched: Commands) -> None:
    (psched.folder / "jobs.yml").write_text(_FILE)
    psched.ok("apply", "jobs.yml")
    psched.ok("modify", "invoices", "--not-before", "2036-12-01T08:00Z")
    assert re.search(
        r"start: declared none, database 2036-1[-\d]+T[:\d]+[+-]\d\d:\d\d\n", psched("diff", "jobs.yml").out
    )


def test_drift_is_shown_and_undone(psched: Commands) -> None:
    (psched.folder / "jobs.yml").write_text(_FILE)
    psched.ok("apply", "jobs.yml")
    assert psched("diff", "jobs.yml").code == 0
    psched.ok("modify", "invoices", "--cron", "0 9 * * *")
    psched.ok("delete", "rates")
    psched.ok("add", "new", "load", "@every 1h", "{}", "--owner", "billing")
    outcome = psched("diff", "jobs.yml")
    code, out = outcome.code, outcome.out
    assert code == 3
    assert re.search(r"last change: modify, 20\d\d-[-: \d]+ [+-]\d{4}, by ", out)
    shown = [line for line in out.splitlines() if not line.startswith("    last change: ")]
    assert shown == [
        "~ invoices: changed",
        "    cron: declared 0 3 * * *, database 0 9 * * *",
        "- rates: missing",
        "+ new: undeclared",
        "3 differ, 0 are as declared in jobs.yml",
    ]
    assert [each["action"] for each in psched("diff", "jobs.yml", "--json").json] == [
        "modify",
        "delete",
        "add",
    ]
    rollback = ("rollback", "--owner", "billing", "--before", "1h")
    assert psched(*rollback).code == 3
    assert "nowhere/plan.json: No such file" in psched.fault(*rollback, "--yes", "--out", "nowhere/plan.json")
    assert re.search(r"\t20\d\d-[-: \d]+ [+-]\d{4}\tadd\t", psched.ok("rollback", "invoices").out)
    unknown = psched.fault("rollback", "--owner", "biling", "--before", "1h")
    assert "no schedule has the owner 'biling' (did you mean 'billing'?); the owners are 'billing'" in unknown
    assert len(psched("list", "--json").json) == 2
    psched.ok(*rollback, "--yes")
    assert psched("list", "--json").json == []
    version = psched.ok("rollback", "invoices").out.split("\t")[0]
    psched.ok("rollback", "invoices", "--version", version, "--yes")
    assert [row["cron"] for row in psched("list", "--json").json] == ["0 3 * * *"]


def test_what_is_exported_needs_no_change(psched: Commands) -> None:
    (psched.folder / "jobs.yml").write_text(_FILE)
    psched.ok("apply", "jobs.yml")
    psched.ok("export", "-o", "exported.yml")
    assert psched("plan", "exported.yml", "--prune").code == 0
    assert psched("export", "-o", "exported.yml").code == 1
    psched.ok("add", "mine", "load", "@every 1h", "{}")
    outcome = psched("export")
    code, error = outcome.code, outcome.err
    assert (code, "a file must have one owner, but the schedules have billing, and some have no owner" in error) == (
        1,
        True,
    )
    assert "mine" in psched.ok("export", "--owner", "", "--as", "me").out

"""Whatever is wrong, psched writes one line that names the fault and the remedy, and no traceback.

The exit code is 1, or 2 for a wrong use of the command.
"""

from __future__ import annotations

import io
import os
import re
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from psched import ConfigError
from psched import open as open_psched
from psched.cli import pschedd, pschedd_status_json
from tests.cli.commands import Commands

TIMES = "give unix seconds, or a date with a time zone such as 2026-12-01T08:00+01:00"
ADD = ("add", "key", "type", "0 * * * *", "{}")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("add", "k", "t", "61 * * * *", "{}"), "cron '61 * * * *'"),
        (("add", "k", "t", "0 0 30 2 *", "{}"), "no day 30 in February"),
        (("add", "k", "t", "nonsense", "{}"), "has 1 field;"),
        (("add", "k", "t", "@daily", "{}", "-t", "Asia/Tokio"), "did you mean 'Asia/Tokyo'?"),
        (("add", "k", "t", "@daily", "{}", "-t", "localtime"), "differs from host to host"),
        (
            ("add", "k", "t", "@daily", '{"a":1'),
            "data is not valid JSON: Expecting ',' delimiter at character 7 (the end)",
        ),
        (("add", "k", "t", "@daily", "{'a':1}"), "at character 2 ('a':1})"),
        (("add", "k", "t", "@daily", "[1]"), "data must be a JSON object"),
        (("add", "k", "t", "@daily", '{"a":NaN}'), "NaN is not a JSON number"),
        (("add", "k", "t", "@daily", '{"a":1,"a":2}'), "data has the key 'a' twice; remove one of them"),
        (("add", "k", "t", "@daily", '{"a":' * 100_000), "nested too deeply"),
        (("add", "", "t", "@daily", "{}"), "key must be non-empty text"),
        (("add", "k" * 256, "t", "@daily", "{}"), "at most 255"),
        (("add", "\udcff", "t", "@daily", "{}"), "cannot be stored"),
        (("add", "k", "", "@daily", "{}"), "type"),
        (
            ("add", "k", "t", "@daily", '{"a":1e999}'),
            "data['a'] is inf, which is not valid JSON; expected a finite number (at most 1.8e308), or null",
        ),
        (("add", "k", "t", "@daily", '{"a":' + "9" * 5000 + "}"), "it holds a number of 5000 digits, at most 4300"),
        (("add", "k", "t", "@daily", '{"a":{"b":["\\ud800"]}}'), "data['a']['b'][0] contains half of a surrogate pair"),
        (("add", "k", "\udcff", "@daily", "{}"), "type contains a character that cannot be stored, U+DCFF"),
        (("audit", "\udcff", "--from", "1d"), "key contains a character that cannot be stored, U+DCFF"),
        (("history", "\udcff"), "key contains a character that cannot be stored, U+DCFF"),
        (
            ("add", "k", "t", "* * * * * *", "{}", "-d", "-3600"),
            "makes 3600 occurrences of cron '* * * * * *' due together, before their times; expected at most 1000",
        ),
        (("add", "k", "t", "@daily", "\x1b[2J"), "at character 1 (\\x1b[2J)"),
        (("apply", "\x1b[2J.yml"), "\\x1b[2J.yml: No such file or directory; name a readable file"),
        (("apply", ""), "'': No such file or directory; name a readable file"),
        (("-c", "\x1b[2J\u202e.yml", "list"), "/\\x1b[2J\\u202e.yml: there is no such file"),
        (("-c", "a\nb.yml", "list"), "/a\\x0ab.yml: there is no such file"),
        (("apply", "a\nb.yml"), "a\\x0ab.yml: No such file or directory"),
        (("add", "k", "t", "@daily", "@a\nb.json"), "a\\x0ab.json: No such file or directory"),
        (("-e", "9" * 5000, "list"), "9 … 999"),
        (("-r", "nosuch", "list"), "module 'nosuch' not found"),
        (("-r", "nosuch", "add", "k", "t", "@daily", "{}"), "module 'nosuch' not found"),
        (("-r", "nosuch.py", "show", "k"), "there is no file 'nosuch.py' to load"),
        (("-I", "/nowhere", "delete", "k"), "include (-I): '/nowhere' does not exist"),
        (("-I", "/dev/null", "delete", "k"), "include (-I): '/dev/null' is not a folder"),
        (("-I", "x" * 300, "delete", "k"), "does not exist; expected a folder"),
        (("-r", "x" * 300 + ".py", "delete", "k"), "there is no file 'xxx"),
        (("queue", "-r", "nosuch", "list"), "module 'nosuch' not found"),
        (("show", "absent"), "no schedule has the key 'absent'"),
        (("modify", "absent", "-d", "1"), "no schedule has the key 'absent'"),
        (("delete", "absent"), "'absent'"),
        (("next", "0 0 30 2 *"), "no day 30 in February"),
        (("list", "--prefix", ""), "prefix must be non-empty text"),
        (("list", "--type", "t" * 256), "type has 256 characters"),
        (("next", "@daily", "-t", "Nowhere"), "timezone 'Nowhere'"),
    ],
)
def test_a_wrong_argument_is_named(psched: Commands, arguments: tuple[str, ...], expected: str) -> None:
    assert expected in psched.fault(*arguments)


@pytest.mark.parametrize("path", ["/", ".", "x" * 5000, "missing/p.pid"])
def test_a_pid_file_that_cannot_be_is_named(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["status", "--json", "--pid-file", path]
    code = pschedd_status_json.main(arguments)
    if code is None:  # the whole program says why
        assert pschedd.main(arguments) == 4  # as LSB says
        assert re.fullmatch(r"pschedd: pid file /.*\n", capsys.readouterr().err)
    else:
        assert (code, capsys.readouterr().err) == (pschedd_status_json.STOPPED, "")


@pytest.mark.parametrize(
    "text", ["1796108400", "2026-12-01T08:00+01:00", "2026-12-01T07:00Z", "2026-12-01 08:00:00 +0100"]
)
def test_a_time_is_unix_seconds_or_a_date_with_a_zone(psched: Commands, text: str) -> None:
    psched.ok(*ADD, "-s", text, "-a", text)
    added = psched.ok("show", "key", "--json").json
    assert (added["next_time"], added["next_run_time"]) == (1796108400, 1796108400)
    assert psched.ok("next", "0 * * * *", "-s", text, "-n", "1", "--json").json[0]["time"] == 1796108400


def test_a_duration_is_a_number_of_seconds_or_has_a_unit(psched: Commands) -> None:
    psched.ok(*ADD, "-d", "90s", "--max-lateness", "1.5m", "--alert-after", "2h")
    added = psched.ok("show", "key", "--json").json
    assert (added["delay"], added["max_lateness"], added["alert_after"]) == (90, 90, 7200)
    psched.ok("modify", "key", "-d", "-5M", "--max-lateness", "1d", "--alert-after", "1w")
    changed = psched.ok("show", "key", "--json").json
    assert (changed["delay"], changed["max_lateness"], changed["alert_after"]) == (-300, 86400, 604800)


def test_data_comes_from_a_file_or_standard_input(psched: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    (psched.folder / "data.json").write_text('\ufeff{"from": "a file"}', encoding="utf-8")
    psched.ok("add", "file", "t", "@daily", "@data.json")
    assert psched.ok("show", "file", "--json").json["data"] == {"from": "a file"}
    psched.ok("modify", "file", "--data", f"@{psched.folder}/data.json")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"from": "stdin"}')))
    psched.ok("add", "stdin", "t", "@daily", "-")
    assert psched.ok("show", "stdin", "--json").json["data"] == {"from": "stdin"}


def test_data_that_cannot_be_read_is_reported_with_its_file(psched: Commands) -> None:
    for content, expected in (
        (b"\xff{}", "wrong.json: data is not UTF-8 (byte 1); save it as UTF-8"),
        (b"", "wrong.json: data is not valid JSON: Expecting value at character 1 (the end)"),
        (b"[]", "wrong.json: data must be a JSON object like"),
    ):
        (psched.folder / "wrong.json").write_bytes(content)
        for command in (("add", "k", "t", "@daily"), ("modify", "k", "--data")):
            assert psched.fault(*command, "@wrong.json").startswith(expected)
    assert psched.fault("add", "k", "t", "@daily", "@absent.json") == (
        "absent.json: No such file or directory; name a readable file, or - for standard input"
    )
    assert psched.ok("list", "--json").json == []


def test_a_file_that_does_not_end_is_reported(psched: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psched.cli.json_input._LARGEST_SOURCE", 1_000_000)
    for command in (("add", "k", "t", "@daily", "@/dev/zero"), ("plan", "/dev/zero"), ("import", "json", "/dev/zero")):
        assert "/dev/zero: has more than 1,000,000 bytes; name a smaller file" in psched.fault(*command)


def test_a_step_that_only_its_first_value_meets_is_warned_about(psched: Commands) -> None:
    expected = (
        "warning: cron '*/90 * * * *': minute '*/90' matches 0 alone, because steps begin again with each hour; "
        "write 0 if you mean that, or several schedules for a longer interval\n"
    )
    process = psched.start("add", "k", "t", "*/90 * * * *", "{}", stderr=-1)
    assert process.communicate()[1].decode() == expected
    outcome = psched("next", "*/90 * * * *")
    assert (outcome.code, outcome.err) == (0, expected)
    psched.ok("next", "*/45 5/1 1-31/7 * *")


def test_no_negative_delay_runs_the_future_without_end(psched: Commands) -> None:
    psched.ok(*ADD)
    assert psched("modify", "key", "-d", "-9000000000").code == 2
    assert "at most 1000" in psched.fault("modify", "key", "--cron", "* * * * *", "-d", "-86400")
    psched.ok("modify", "key", "-d", "-86400")
    assert "at most 1000" in psched.fault("modify", "key", "--cron", "* * * * *")
    assert psched.ok("show", "key", "--json").json["delay"] == -86400


def test_a_module_that_a_command_is_to_load_is_loaded(psched: Commands) -> None:
    (psched.folder / "jobs_of_list.py").write_text("raise ValueError('this module is broken')")
    assert "this module is broken" in psched.fault("-I", str(psched.folder), "-r", "jobs_of_list", "list")
    (psched.folder / "jobs_of_list.py").write_text("")
    psched.ok("-I", str(psched.folder), "-r", "jobs_of_list", "list", "--json")


def test_a_key_that_exists_is_named(psched: Commands) -> None:
    psched.ok(*ADD)
    assert psched.fault(*ADD) == "a schedule has the key 'key' already; modify it, or choose another key"


def test_a_wrong_change_leaves_the_schedule_as_it_was(psched: Commands) -> None:
    psched.ok(*ADD)
    before = psched.ok("show", "key", "--json").json
    psched.fault("modify", "key", "--cron", "bad")
    assert psched.ok("show", "key", "--json").json == before


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("lsit",), "Did you mean 'list'?"),
        (("add", "key"), "Missing argument 'TYPE'"),
        *(
            (("add", "k", "t", "@daily", "{}", "-d", delay), f"(90s, 5m, 2h) from -31622400 to 31622400, got '{delay}'")
            for delay in ("soon", "nan", "1e999", "-9e9", "-31622401")
        ),
        *(
            ((*command, option, "tomorrow"), f"'tomorrow' is not a time; {TIMES}")
            for command in (("add", "k", "t", "@daily", "{}"), ("modify", "k"))
            for option in ("-s", "-a")
        ),
        *(
            ((*command, option, time), f"'{time}' is before 1973, unix seconds 100000000 (now it is 1")
            for command in (("add", "k", "t", "@daily", "{}"), ("modify", "k"))
            for option, time in (("-s", "-1"), ("-a", "-5"), ("-s", "3600"), ("-a", "1969-12-31T00:00Z"))
        ),
        (("add", "k", "t", "@daily", "{}", "-s", "2026-12-01T08:00"), "write it as in 2026-12-01T08:00:00Z, or with"),
        (("add", "k", "t", "@daily", "{}", "-s", "2026-13-01T08:00Z"), f"'2026-13-01T08:00Z' is not a time; {TIMES}"),
        (("add", "k", "t", "@daily", "{}", "-s", "9999999999999"), "after the year 9999, unix seconds 253402300799"),
        (("add", "k", "t", "@daily", "{}", "-a", "9" * 5000), "after the year 9999, unix seconds 253402300799"),
        (("add", "k", "t", "@daily", "{}", "--max-attempts", "9" * 5000), "from 1 to 2147483647, or none, got '9"),
        (("add", "k", "t", "@daily", "{}", "--retry-wait", "5..1"), "with the shorter wait first, got '5..1'"),
        (("add", "k", "t", "@daily", "{}", "--alert-after", "2e9"), "from 0 to 1000000000, or none, got '2e9'"),
        (
            ("audit", "--from", "9999999999999"),
            "'9999999999999' is after the year 9999, unix seconds 253402300799; did you give milli",
        ),
        (("audit", "--from", "-1"), "'-1' is before 1970"),
        (("audit", "--from", "99999999999w"), "'99999999999w' is more than 31 years (1000000000 s) ago"),
        (
            ("audit", "--from", "1d", "--late", "nan"),
            "expected seconds or a duration (90s, 5m, 2h) from 0 to 1000000000, got 'nan'",
        ),
        (("history", "--since", "9999999999999"), "'9999999999999' is after the year 9999"),
        (("history", "--until", "-1"), "'-1' is before 1970"),
        (("next", "@daily", "-s", "-5"), "'-5' is before 1973"),
        (("next", "@daily", "-n", "9" * 5000), "expected a whole number from 1 to 100000, got '9"),
        (("next", "nightly"), "'nightly' is not a cron expression; to name a schedule, give --key"),
        (("explain", "nightly"), "'nightly' is not a cron expression; to name a schedule, give --key"),
        (("explain", "@daily", "--at", "9999-12-31"), "'9999-12-31' is not from 1970 to 9998; give a date such as"),
        (("list", "--jsn"), "No such option '--jsn'"),
        (("list", "--state", "late"), "'late' is not one of 'broken', 'paused', 'running'"),
        (
            ("list", "--after", "key"),
            "expected the text that the previous page printed, such as 1796108400:KEY, got 'key'",
        ),
        (("list", "--after", "1796108400:"), "such as 1796108400:KEY, got '1796108400:'"),
        (("list", "--late", "--state", "due"), "--late cannot be combined with --state or --after; remove one of them"),
        (("list", "--limit", "0"), "expected a whole number from 1 to 2147483647, got '0'"),
        (("history", "--limit", "many"), "expected a whole number from 1 to 2147483647, got 'many'"),
        (("list", "--format", "json"), "'json' is not 'perfectsched'"),
        (("next", "@daily", "-n", "0"), "expected a whole number from 1 to 100000, got '0'"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(psched: Commands, arguments: tuple[str, ...], expected: str) -> None:
    outcome = psched(*arguments)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert expected in outcome.err
    assert "--help" in outcome.err


def test_a_missing_configuration_is_named(fresh: Commands) -> None:
    assert fresh.fault("list") == (
        f"{fresh.folder}/etc/psched.yml: there is no such file; "
        "name one with -c or PSCHED_CONFIG (etc/psched.example.yml is an example)"
    )


def test_each_fault_of_a_configuration_has_its_line(fresh: Commands) -> None:
    fresh.configure("development: {type: rdb, processors: 0, tabel: x}")
    outcome = fresh("list")
    assert outcome.code == 1
    assert [line.split(":")[3].strip() for line in outcome.err.splitlines()] == ["tabel", "url", "processors"]


def test_a_configuration_without_schedules_is_reported(fresh: Commands) -> None:
    fresh.configure("development: {queue: {type: rdb, url: 'sqlite:///q.db'}}")
    assert "the section `schedules:` is missing" in fresh.fault("list")


def test_a_missing_table_names_init_on_each_database(fresh: Commands, database: str) -> None:
    fresh.use(database)
    for command in (("list",), ADD, ("show", "k"), ("delete", "k")):
        assert "psched init" in fresh.fault(*command)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_a_database_in_memory_is_refused_since_no_other_process_sees_it(fresh: Commands, url: str) -> None:
    fresh.use(f"'{url}'")
    for arguments in (("init",), ("queue", "list"), ("run", "jobs:app")):
        assert fresh.fault(*arguments).endswith("ends with its process; name a file, as in sqlite:///psched.db")


def test_a_certificate_that_cannot_be_read_is_named_by_its_option(fresh: Commands) -> None:
    fresh.use("mysql://u:p@127.0.0.1:1/d?ssl_ca=/nowhere/ca.pem")
    assert "ssl_ca" in fresh.fault("list")


def test_only_init_creates_a_sqlite_file(fresh: Commands) -> None:
    fresh.use("sqlite:///../psched.db")
    assert "psched init" in fresh.fault(*ADD)
    fresh("doctor")
    assert not (fresh.folder / "psched.db").exists()
    fresh.ok("init")
    assert (fresh.folder / "psched.db").exists()


@pytest.mark.parametrize(("folder", "found"), [("/none", "does not exist"), ("/dev/null", "is not a folder")])
@pytest.mark.parametrize("type_", ["rdb", "rdb_compat"])
def test_a_missing_folder_is_named_and_no_table(fresh: Commands, type_: str, folder: str, found: str) -> None:
    url = f"sqlite:///{folder}/psched.db"
    fresh.configure(f"development:\n  type: {type_}\n  url: {url}\n  schedules: {{}}\n  queue: {{table: q}}\n")
    remedy = "create or mount the folder, or configure another file"
    expected = f"url: the folder {folder} of the SQLite file {found}; {remedy}"
    for command in (("init",), ("list",), ("show", "k"), ADD, ("queue", "list"), ("queue", "submit", "k", "t", "{}")):
        assert fresh.fault(*command) == expected
    assert {one["message"] for one in fresh("doctor", "--json").json if not one["ok"]} == {expected}


def test_a_missing_file_is_named_with_its_path(fresh: Commands) -> None:
    fresh.use("sqlite:///../psched.db")
    expected = (
        f"url: the SQLite file {fresh.folder}/psched.db does not exist; configure the right file, "
        "or create it with: psched init (for a queue: psched queue init)"
    )
    assert fresh.fault("list") == expected
    [failed] = [one for one in fresh("doctor", "--json").json if not one["ok"]]
    assert (failed["subject"], failed["message"]) == ("table", expected)


def test_a_folder_in_place_of_the_configuration_is_named(fresh: Commands) -> None:
    assert fresh.fault("-c", str(fresh.folder), "list") == (
        f"{fresh.folder}: is a folder; name a YAML file with -c or PSCHED_CONFIG"
    )


def test_a_missing_file_is_named_by_the_error_of_a_statement(psched: Commands) -> None:
    with open_psched(psched.folder / "etc" / "psched.yml", "development") as schedules:
        schedules.close()  # its connections, which would keep the file
        (psched.folder / "psched.db").rename(psched.folder / "elsewhere.db")
        with pytest.raises(OperationalError, match=f"the SQLite file {psched.folder}/psched.db does not exist"):
            schedules.add("k", "t", cron="* * * * *")


def test_indentation_by_a_tab_is_named(fresh: Commands) -> None:
    fresh.configure("development:\n\ttype: rdb\n")
    assert fresh.fault("list").endswith("psched.yml:2: not valid YAML: a tab; indent with spaces")


def test_closed_output_is_no_fault(psched: Commands) -> None:
    process = psched.start("list", preexec_fn=lambda: os.close(1), stderr=-1)
    assert process.communicate()[1] == b""
    assert process.returncode == 0


def test_a_file_that_is_no_sqlite_database_is_named(fresh: Commands) -> None:
    fresh.use("sqlite:///../psched.db")
    (fresh.folder / "psched.db").write_text("this is a letter, not a database; " * 50)
    expected = f"url: {fresh.folder}/psched.db is not an SQLite database; configure another file, or move this one away"
    assert (fresh.fault("list"), fresh.fault("init")) == (expected, expected)
    [failed] = [one for one in fresh("doctor", "--json").json if not one["ok"]]
    assert (failed["subject"], failed["message"]) == ("table", expected)
    with pytest.raises(ConfigError, match=expected):
        open_psched(fresh.folder / "etc" / "psched.yml", "development")


def test_a_sqlite_file_that_cannot_be_opened_is_named(fresh: Commands) -> None:
    fresh.use("sqlite:///../psched.db")
    (fresh.folder / "psched.db").mkdir()
    expected = f"url: {fresh.folder}/psched.db is a folder; configure a file"
    assert (fresh.fault("list"), fresh.fault("init")) == (expected, expected)


def test_a_locked_sqlite_file_is_reported_after_a_while(psched: Commands) -> None:
    psched.use("sqlite:///../psched.db?read_timeout=0.1")
    holder = sqlite3.connect(psched.folder / "psched.db")
    try:
        holder.execute("BEGIN EXCLUSIVE")
        assert "database is locked" in psched.fault(*ADD)
    finally:
        holder.close()


@pytest.mark.parametrize("scheme", ["mysql", "postgresql"])
def test_a_refused_connection_names_host_and_port_but_no_password(fresh: Commands, scheme: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        fresh.use(f"{scheme}://psched:s3cret@127.0.0.1:{port}/psched")
        for command in (("list",), ("init",), ADD):
            message = fresh.fault(*command)
            assert f"{scheme}://psched:***@127.0.0.1:{port}/psched is not available" in message
            assert "is the server running" in message
            assert "s3cret" not in message


def test_a_wrong_password_is_reported_without_it(fresh: Commands, server: object) -> None:
    url = str(server.url("absent")).replace(":secret@", ":wrong-s3cret@")  # type: ignore[attr-defined]
    fresh.use(url)
    message = fresh.fault("list")
    assert "s3cret" not in message
    assert "127.0.0.1" in message


def test_an_unknown_option_in_the_url_of_a_mysql_is_named(fresh: Commands) -> None:
    fresh.use("mysql://u:p@127.0.0.1:1/d?nosuch=x")
    message = fresh.fault("list")
    assert "url: PyMySQL does not know an option of the URL" in message
    assert "'nosuch'" in message


def test_an_unknown_kind_of_database_is_reported(fresh: Commands) -> None:
    fresh.use("oracle://h/d")
    assert "oracle" in fresh.fault("list")


@pytest.mark.parametrize("command", [("next", "@daily"), ("list",), ("list", "--json"), ("show", "key"), ("doctor",)])
def test_output_that_cannot_be_written_is_reported(psched: Commands, command: tuple[str, ...]) -> None:
    psched.ok(*ADD)
    with Path("/dev/full").open("w") as full:
        process = psched.start(*command, stdout=full, stderr=-1)
        _, err = process.communicate()
    assert process.returncode == 1
    assert err.decode() == "psched: stdout: No space left on device\n"


def test_unbuffered_output_that_cannot_be_written_is_reported() -> None:
    program = "import sys; from psched.cli.main import main; sys.exit(main())"
    with Path("/dev/full").open("w") as full:
        process = subprocess.run(
            [sys.executable, "-u", "-c", program, "next", "@daily"], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert process.returncode == 1
    assert process.stderr.decode() == "psched: stdout: No space left on device\n"

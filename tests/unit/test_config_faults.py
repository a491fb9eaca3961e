"""Errors about a wrong configuration: one line for each fault, with file, environment, key, and the expected value."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from psched.config import from_mapping, load
from psched.errors import ConfigError

SQLITE: dict[str, Any] = {"type": "rdb", "url": "sqlite:////data/psched.db"}
EMPTY_TYPES = "is empty; give a type, a glob such as video.*, or leave the key out"


def fault(mapping: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        from_mapping(mapping)
    return str(caught.value)


def file_fault(tmp_path: Path, content: str | bytes, environment: str = "production") -> str:
    """Return the error about a file with this content, without the file's path."""
    path = tmp_path / "psched.yml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as caught:
        load(path, environment)
    assert str(caught.value).startswith(str(path))
    return str(caught.value).removeprefix(str(path))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (
            {"type": "rbd"},
            "config: type: no store 'rbd'; choose rdb, redis or rdb_compat, or name a package of your own",
        ),
        (
            {"type": "nowhere.store"},
            "config: type: no store 'nowhere.store'; choose rdb, redis or rdb_compat, or name a package of your own",
        ),
        (
            {"pooler": "session"},
            "config: schedules: pooler: session is not for sqlite://; expected auto, or leave the key out",
        ),
        (
            {"type": "redis", "url": "redis://127.0.0.1/0", "pooler": "session"},
            "config: schedules: pooler: session is not for redis://; expected auto, or leave the key out",
        ),
        (
            {"url": "mysql://h/psched", "pooler": "session"},
            (
                "config: schedules: pooler: session is not for mysql://; expected auto or transaction, "
                "or leave the key out"
            ),
        ),
        (
            {"url": "postgresql://127.0.0.1/psched", "pooler": "none"},
            "config: pooler: expected auto, transaction or session, got 'none'",
        ),
        ({"type": ["rdb"]}, "config: type: expected text, got ['rdb']"),
        ({"retry_wiat": 3}, "config: retry_wiat: unknown key; did you mean 'retry_wait'?"),
        ({"schedules": {"tabel": "x"}}, "config: schedules.tabel: unknown key; did you mean 'table'?"),
        (
            {"type": "rdb_compat", "max_attempts": 3},
            (
                "config: max_attempts: rdb_compat counts no attempts of schedules and retries without end; "
                "write it under queue:, or use type: rdb"
            ),
        ),
        ({"schedules": {"log": "x"}}, "config: schedules.log: unknown key; move it to the top level"),
        ({"sslca": "/etc/ca.pem"}, "config: sslca: a key of PerfectQueue; write tls: {ca: FILE}"),
        (
            {"queue": {"max_acquire": 3}},
            (
                "config: queue.max_acquire: a key of PerfectQueue; write task_prefetch with a number "
                "that is one less: it does not count the running task"
            ),
        ),
        ({"schedules": [1]}, "config: schedules: expected a mapping of settings, got list"),
        ({"processors": True}, "config: processors: expected a whole number ≥ 1, got True"),
        ({"processors": 0}, "config: processors: expected a whole number ≥ 1, got 0"),
        ({"processors": 1.5}, "config: processors: expected a whole number ≥ 1, got 1.5"),
        ({"processors": "many"}, "config: processors: expected a whole number ≥ 1, got 'many'"),
        ({"processors": 10_001}, "config: processors: expected a whole number ≥ 1 and ≤ 10000, got 10001"),
        ({"max_attempts": 0}, "config: max_attempts: expected a whole number ≥ 1 or none, got 0"),
        (
            {"type": "rdb_compat", "on_failure": ["page"]},
            "config: on_failure: type rdb_compat (schedules) retries without end, so no task ever fails; use type: rdb",
        ),
        (
            {"hooks": {"pager": "page me"}},
            "config: hooks: pager: expected a URL (http:// or https://), or a command as a list of arguments",
        ),
        (
            {"on_late": "page me"},
            "config: on_late: expected a URL (http:// or https://), or a command as a list of arguments, got text",
        ),
        ({"types": 3}, "config: types: expected a type, a glob like video.*, or a list of them, got 3"),
        ({"types": ""}, f"config: types: {EMPTY_TYPES}"),
        ({"queue": {"types": " "}}, f"config: queue.types: {EMPTY_TYPES}"),
        ({"types": []}, f"config: types: {EMPTY_TYPES}"),
        (
            {"types": ["video.*", " "]},
            "config: types: item 2 is empty; give a type, a glob such as video.*, or remove the item",
        ),
        ({"task_prefetch": "all"}, "config: task_prefetch: expected a whole number ≥ 0 or auto, got 'all'"),
        ({"poll_interval": 0}, "config: poll_interval: expected seconds or a duration (90s, 5m, 2h) > 0, got 0"),
        (
            {"child_heartbeat_limit": 0},
            "config: child_heartbeat_limit: expected seconds or a duration (90s, 5m, 2h) > 0, got 0",
        ),
        (
            {"child_heartbeat_limit": 10**400},
            "config: child_heartbeat_limit: expected seconds or a duration (90s, 5m, 2h) > 0, got 1" + "0" * 99,
        ),
        (
            {"poll_interval": False},
            "config: poll_interval: expected seconds or a duration (90s, 5m, 2h) > 0, got False",
        ),
        ({"retry_wait": -1}, "config: retry_wait: expected seconds or a duration (90s, 5m, 2h) ≥ 0, got -1"),
        (
            {"retry_wait": {"frist": 1}},
            (
                "config: retry_wait: unknown key 'frist' (did you mean 'first'?); "
                "expected seconds, a duration, or a mapping like {first: 1, factor: 2, limit: 5m}"
            ),
        ),
        (
            {"queue": {"retry_wait": {"jitter": 2}}},
            (
                "config: queue.retry_wait: jitter must be a number from 0 to 1, got 2; "
                "expected seconds, a duration, or a mapping like {first: 1, factor: 2, limit: 5m}"
            ),
        ),
        ({"queue": {"max_attempts": 0}}, "config: queue.max_attempts: expected a whole number ≥ 1 or none, got 0"),
        ({"retry_wait": float("nan")}, "config: retry_wait: expected seconds or a duration (90s, 5m, 2h) ≥ 0, got nan"),
        (
            {"alive_time": 1e10},
            "config: alive_time: expected seconds or a duration (90s, 5m, 2h) > 0 and ≤ 1000000000, got 10000000000.0",
        ),
        (
            {"child_graceful_kill_limit": "nevr"},
            "config: child_graceful_kill_limit: expected seconds or a duration (90s, 5m, 2h) ≥ 0 or never, got 'nevr'",
        ),
        (
            {"table": "a; drop"},
            "config: table: expected a table name of letters, digits and _, at most 63 characters, got 'a; drop'",
        ),
        ({"processor_type": "fiber"}, "config: processor_type: expected process or thread, got 'fiber'"),
        ({"cron_dialect": "quartz"}, "config: cron_dialect: expected vixie or perfectsched, got 'quartz'"),
        ({"app": "jobs:"}, "config: app: expected module:NAME, NAME, or a list of them, got 'jobs:'"),
        ({"app": [3]}, "config: app: expected module:NAME, NAME, or a list of them, got [3]"),
        ({"log": ""}, "config: log: expected a path, got ''"),
        ({"user": 0}, "config: user: expected text, got 0"),
        ({"user": " "}, "config: user: expected text that is not empty, got ' '"),
        ({"url": ""}, "config: url: expected text that is not empty"),
        ({"tls": {"verify": "yes"}}, "config: tls: expected verify to be full, ca or none, got {'verify': 'yes'}"),
        (
            {"tls": {}},
            "config: tls: is empty; write {verify: full} for the system's certificates, or leave the key out",
        ),
        (
            {"tls": {"chain": "x"}},
            "config: tls: expected a mapping with one or more of ca, cert, key and verify, got {'chain': 'x'}",
        ),
        (
            {"queue": {}, "schedules": {}, "table": "t"},
            "config: queue.table: schedules and queue cannot share the table 't'; name another one",
        ),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected_and_found(keys: dict[str, Any], expected: str) -> None:
    assert fault({**SQLITE, **keys}) == expected


def test_an_unknown_zone_is_named_with_the_nearest_one() -> None:
    assert fault({**SQLITE, "schedules": {"timezone": "Asia/Tokio"}}) == (
        "config: schedules.timezone: 'Asia/Tokio' is not a zone of the tz database; "
        "expected a name like 'Europe/Berlin'; did you mean 'Asia/Tokyo'?"
    )


def test_what_is_missing_is_named_with_what_may_stand_there() -> None:
    assert fault({"url": "sqlite://"}).startswith("config: type: missing; expected rdb")
    assert fault({"type": "rdb"}).startswith("config: url: missing; expected a URL like sqlite:///psched.db")


def test_every_fault_has_a_line_of_its_own_and_is_reported_once() -> None:
    lines = fault({**SQLITE, "processors": 0, "retry_wait": "x", "schedules": {}, "queue": {}}).splitlines()
    assert sorted(line.split(":")[1].strip() for line in lines) == ["processors", "retry_wait"]


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({"child_heartbeat_limit": 299}, "child_heartbeat_limit 299 + child_kill_interval 2"),
        ({"child_kill_interval": 290}, "child_heartbeat_limit 10 + child_kill_interval 290"),
        ({"child_heartbeat_interval": 10}, "child_heartbeat_interval 10 must be less than child_heartbeat_limit 10"),
        ({"task_heartbeat_interval": 150}, "task_heartbeat_interval 150 must be less than half"),
    ],
)
def test_values_that_would_let_a_frozen_child_outlive_its_lease_are_refused(keys: dict[str, Any], name: str) -> None:
    assert name in fault({**SQLITE, **keys})


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("psched.db", "expected a URL like"),
        ("mysql:/psched:s3cret@db/psched", "expected a URL like"),
        ("mysql://psched:s3cret@db:port/psched", "expected a URL like"),
        ("mysql://psched:s3@cret@db/psched", "the password contains an '@'; write it as %40"),
        ("postgresql://psched:s3cret@db:99999/psched", "the port 99999 is not from 1 to 65535"),
        ("sqlite://psched.db", "three slashes"),
        ("sqlite:///file::memory:?uri=true", "not a file: URI"),
    ],
)
def test_a_wrong_url_is_reported_without_its_password(url: str, expected: str) -> None:
    message = fault({"type": "rdb", "url": url})
    assert message.startswith("config: url: ")
    assert expected in message
    assert "s3" not in message


@pytest.mark.parametrize(
    ("type_", "url", "words"),
    [
        ("redis", "mysql://u:s3cret@h/d", "type redis needs a URL like redis://host:6379/0, not mysql://"),
        ("rdb", "redis://:s3cret@h/0", "type rdb needs a SQL database, not redis://; use type redis"),
        ("rdb_compat", "unix:///run/redis.sock", "not unix://"),
    ],
)
def test_a_url_of_another_type_is_reported_with_the_right_one(type_: str, url: str, words: str) -> None:
    message = fault({"type": type_, "url": url})
    assert words in message
    assert "s3cret" not in message


def test_a_url_of_another_type_is_reported_once_for_all_sections() -> None:
    message = fault({"type": "rdb", "url": "redis://h/0", "schedules": {}, "queue": {}})
    assert message == "config: schedules, queue: type rdb needs a SQL database, not redis://; use type redis"


def test_a_url_under_a_wrong_key_is_reported_without_its_password() -> None:
    assert "s3cret" not in fault({**SQLITE, "table": "mysql://psched:s3cret@db/psched"})


def test_what_a_variable_holds_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    assert fault({**SQLITE, "table": "${SECRET}!"}).endswith("got '${SECRET}!'")
    assert fault({**SQLITE, "healthchecks": "https://h/{${SECRET}}"}) == (
        "config: healthchecks: url: expected no placeholders except {slug}, {key} and {type}; "
        "write {{ for a brace outside of a placeholder"
    )
    assert fault({**SQLITE, "web": {"timezone": ["${SECRET}"]}}) == (
        "config: web: timezone: expected a name like 'Europe/Berlin'"
    )


@pytest.mark.parametrize(
    ("key", "value", "got"),
    [
        ("on_late", "s3cret", "text"),
        ("on_late", "ftp://u:s3cret@h/s3cret", "'ftp://…'"),
        ("on_failure", {"url": "http://h/s3cret", "command": ["s3cret"]}, "a mapping with url, command"),
        ("on_recovered", {"command": "s3cret"}, "a mapping with command"),
        ("on_failure", [1, "s3cret"], "a list"),
        ("on_failure", {}, "an empty mapping"),
        ("on_failure", 3, "3"),
        ("healthchecks", "http://h:s3cret/{slug}", "'http://…'"),
        ("hooks", ["s3cret"], "a list"),
        ("events", {"stream": "redis://:s3cret@h", "url": "http://h/s3cret"}, "a mapping with stream, url"),
        ("app", [{"jobs:": {"password": "s3cret"}}], "[{'jobs:': …}]"),
        ("app", {"jobs:app": "s3cret"}, "{'jobs:app': …}"),
        ("telemetry", {"o tel": {"token": "s3cret"}}, "{'o tel': …}"),
    ],
)
def test_values_that_may_be_secrets_are_not_told(key: str, value: object, got: str) -> None:
    message = fault({**SQLITE, key: value})
    assert message.startswith(f"config: {key}: expected")
    assert message.endswith(f", got {got}")


def test_an_unset_variable_is_named_with_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNSET", raising=False)
    assert fault({**SQLITE, "queue": {"url": "mysql://u:${UNSET}@h/d"}}) == (
        "config: queue.url: the environment variable UNSET is not set; "
        "export it, or write it into the file that env_file: names"
    )
    assert "expected ${NAME}" in fault({**SQLITE, "log": "${UNSET"})
    misspelt, unset = fault({**SQLITE, "env_fiel": "secrets", "log": "${UNSET}"}).splitlines()
    assert (misspelt, "UNSET" in unset) == ("config: env_fiel: unknown key; did you mean 'env_file'?", True)


@pytest.mark.parametrize(
    ("content", "line", "problem"),
    [
        (b"A=1\n\n  \ns3cret\n", ":4", "expected NAME=value; write quotes around a value that contains quotes"),
        (b"A=1\nB='s3cret\n", ":2", "expected NAME=value; write quotes around a value that contains quotes"),
        (b"A=s3cret\xff\n", "", "not UTF-8 text"),
    ],
)
def test_an_env_file_is_reported_by_its_line_and_without_its_text(
    tmp_path: Path, content: bytes, line: str, problem: str
) -> None:
    file = tmp_path / "environment"
    file.write_bytes(content)
    assert fault({**SQLITE, "env_file": str(file)}) == f"config: env_file: {file}{line}: {problem}"


def test_an_env_file_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    assert fault({**SQLITE, "env_file": f"{tmp_path}/none"}) == (
        f"config: env_file: {tmp_path}/none: cannot be read: No such file or directory"
    )
    assert fault({**SQLITE, "env_file": str(tmp_path)}).endswith("cannot be read: Is a directory")
    assert fault({**SQLITE, "env_file": 3}) == "config: env_file: expected a path, got 3"
    hint = "; move it to the top level"
    assert fault({**SQLITE, "queue": {"env_file": "e"}}) == f"config: queue.env_file: unknown key{hint}"


def test_a_pipe_or_device_is_refused_as_a_file_of_secrets_before_it_is_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    problem = "cannot be read: not a file, but a pipe or device"
    assert fault({**SQLITE, "env_file": str(pipe)}) == f"config: env_file: {pipe}: {problem}"
    assert fault({**SQLITE, "table": "${file:/dev/zero}"}) == f"config: table: /dev/zero: {problem}"


def test_a_file_for_a_value_that_cannot_be_used_is_named_with_its_key(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    begin = "config: table"
    assert (
        fault({**SQLITE, "table": f"${{file:{secret}}}"})
        == f"{begin}: {secret}: cannot be read: No such file or directory"
    )
    secret.write_text("s3cret\nmore\n")
    assert (
        fault({**SQLITE, "table": f"${{file:{secret}}}"})
        == f"{begin}: {secret}: expected one line of text, got 2 lines"
    )
    secret.write_text("s3cret!\n")
    assert fault({**SQLITE, "table": f"${{file:{secret}}}"}).endswith(f"got '${{file:{secret}}}'")
    for wrong in ("${file:}", "${file:x", "${file:${x}"):
        assert "after '$'" in fault({**SQLITE, "table": wrong})


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match="^/none/psched.yml: there is no such file"):
        load("/none/psched.yml")


def test_a_missing_environment_is_named_with_those_that_are_there(tmp_path: Path) -> None:
    assert file_fault(tmp_path, "development: {}\nproduktion: {}\n") == (
        ": there is no environment 'production', only development, produktion; "
        "did you mean 'produktion'? (set -e or $PSCHED_ENV)"
    )


def test_a_file_that_is_no_configuration_is_not_printed(tmp_path: Path) -> None:
    secrets = "".join(f"user{number}:$6$s3cret{number}:19000:0:99999:7:::\n" for number in range(3))
    assert file_fault(tmp_path, secrets) == (
        ": there is no environment 'production', and none of the file's 3 keys looks like an environment "
        "(set -e or $PSCHED_ENV)"
    )


def test_of_many_environments_ten_are_named(tmp_path: Path) -> None:
    names = ["prod-eu", "x" * 41, *(f"site{number}" for number in range(9)), "produktion"]
    assert file_fault(tmp_path, "".join(f"{name}: {{}}\n" for name in (*names, "a b"))) == (
        f": there is no environment 'production', only prod-eu, {'x' * 39}…, "
        "site0, site1, site2, site3, site4, site5, site6, site7 and 3 more; "
        "did you mean 'produktion'? (set -e or $PSCHED_ENV)"
    )


def test_settings_without_an_environment_are_reported_where_they_belong(tmp_path: Path) -> None:
    assert "indent them under `production:`" in file_fault(tmp_path, "type: rdb\nurl: sqlite://\n")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("production:\n  type: rdb\n  type: rdb\n", ":3: not valid YAML: duplicate key 'type'"),
        ("production:\n\ttype: rdb\n", ":2: not valid YAML: "),
        ("production: [\n", ":2: not valid YAML: "),
        ("production: {? [a] : b}", ":1: not valid YAML: found unhashable key"),
        (b"production: \xff\n", ": not valid YAML: expected UTF-8 text"),
        ("production: \x00\n", ": not valid YAML: expected UTF-8 text"),
        ("", ": expected one mapping per environment"),
        ("- a\n", ": expected one mapping per environment"),
        ("production:\n", ":production: expected a mapping of settings, got nothing"),
        ("production: &a\n  app: [*a]\n", ":production: nested too deeply"),
        ("production: !!python/object:os.system {}\n", ":1: not valid YAML: "),
    ],
)
def test_a_file_that_is_no_configuration_is_reported_with_its_line(
    tmp_path: Path, content: str | bytes, expected: str
) -> None:
    assert file_fault(tmp_path, content).startswith(expected)


def test_a_fault_names_file_and_environment(tmp_path: Path) -> None:
    assert file_fault(tmp_path, "production: {type: rdb, url: 'sqlite://', processors: 0}") == (
        ":production: processors: expected a whole number ≥ 1, got 0"
    )


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ({"web": {"listen": "${WHERE}"}}, "web: listen: expected HOST:PORT"),
        ({"web": {"actions": "${WHERE}"}}, "web: actions: expected true or false"),
        ({"web": {"show_data": "${WHERE}"}}, "web: show_data: expected true or false"),
        ({"web": {"timezone": "${WHERE}"}}, "web: timezone"),
        ({"web": {"hosts": ["a", "x${WHERE}:y"], "listen": "x${WHERE}"}}, "web: listen"),
        ({"timezone": "${WHERE}"}, "timezone: "),
        ({"queue": {"type": "${WHERE}"}}, "queue.type: no store"),
    ],
)
def test_a_fault_names_a_variable_instead_of_its_value(
    keys: dict[str, Any], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHERE", "hush-hush")
    found = fault(SQLITE | keys)
    assert found.startswith(f"config: {path}")
    assert "${WHERE}'" in found
    assert "hush" not in found


def test_what_is_no_configuration_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="got list"):
        from_mapping({**SQLITE, "queue": []})

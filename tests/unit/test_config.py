"""The configuration: inheritance, defaults, variables, paths. test_config_faults.py tests wrong configurations."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve, fields
from attrs.exceptions import FrozenInstanceError

from psched.config import Section, Settings, coerce, from_mapping, load, masked_url
from psched.errors import ConfigError
from psched.retry_wait import Backoff

SQLITE = {"type": "rdb", "url": "sqlite:////data/psched.db"}
EXAMPLE = Path(__file__).parents[2] / "etc" / "psched.example.yml"


def schedules(**keys: Any) -> Section:
    section = from_mapping({**SQLITE, **keys}).schedules
    assert section is not None
    return section


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A configuration with one environment, `development`."""
    path = tmp_path / "etc" / "psched.yml"
    path.parent.mkdir()
    path.write_text("development:\n  type: rdb\n  url: sqlite:///../psched.db\n  app: jobs:app\n")
    return path


def test_a_flat_configuration_is_the_reader_s_section() -> None:
    read_as_schedules = from_mapping({**SQLITE, "table": "t"})
    read_as_queue = from_mapping({**SQLITE, "table": "t"}, reader="queue")
    assert read_as_schedules.schedules and read_as_schedules.schedules.table == "t"
    assert read_as_schedules.queue is None
    assert read_as_queue.queue and read_as_queue.queue.table == "t"
    assert read_as_queue.schedules is None


def test_sections_inherit_the_top_level_and_override_it() -> None:
    settings = from_mapping(
        {**SQLITE, "poll_interval": 3, "timezone": "Asia/Tokyo", "queue": {"poll_interval": 0.5}, "schedules": None}
    )
    assert settings.schedules and settings.queue
    assert (settings.schedules.poll_interval, settings.queue.poll_interval) == (3, 0.5)
    assert (settings.schedules.timezone, settings.queue.timezone) == ("Asia/Tokyo", "Asia/Tokyo")
    assert settings.sections == (settings.schedules, settings.queue)


def test_only_the_sections_that_are_written_are_served() -> None:
    assert from_mapping({"queue": SQLITE}).schedules is None
    assert from_mapping({"schedules": SQLITE}, reader="queue").queue is None


def test_a_section_may_undo_what_the_top_level_sets() -> None:
    settings = from_mapping({**SQLITE, "task_timeout": 60, "schedules": {"task_timeout": None}, "queue": {}})
    assert settings.schedules and settings.schedules.task_timeout is None
    assert settings.queue and settings.queue.task_timeout == 60


def test_tables_have_a_default_for_each_section_and_kind_of_store() -> None:
    ours = from_mapping({**SQLITE, "schedules": {}, "queue": {}})
    theirs = from_mapping({**SQLITE, "type": "rdb_compat", "schedules": {}, "queue": {}})
    tables = [section.table for settings in (ours, theirs) for section in settings.sections]
    assert tables == ["psched_schedules", "psched_queue", "perfect_sched", "perfect_queue"]


def test_the_cron_dialect_is_that_of_the_table_s_owner() -> None:
    assert schedules().cron_dialect == "vixie"
    assert schedules(type="rdb_compat").cron_dialect == "perfectsched"
    assert schedules(type="rdb_compat", cron_dialect="vixie").cron_dialect == "vixie"


def test_defaults_follow_a_short_alive_time_so_that_they_never_contradict_it() -> None:
    for alive_time in (0.5, 3, 5, 30, 300):
        settings = from_mapping({**SQLITE, "alive_time": alive_time})
        assert settings.schedules is not None
        assert settings.child_heartbeat_limit == min(10, alive_time / 3)
        assert settings.child_heartbeat_interval < settings.child_heartbeat_limit
        assert settings.schedules.task_heartbeat_interval < alive_time / 2


def test_the_shortest_lease_of_all_sections_bounds_the_heartbeat_limit() -> None:
    settings = from_mapping({**SQLITE, "schedules": {"alive_time": 9}, "queue": {}})
    assert settings.child_heartbeat_limit == 3


def test_durations_may_have_a_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAIT", "2m")
    keys = {"alive_time": "90s", "ledger_retention": "4w", "child_heartbeat_limit": "0.5m", "task_timeout": "1h"}
    waits = {"retry_wait": {"first": "10s", "limit": "${WAIT}"}}
    settings = from_mapping({**SQLITE, **keys, **waits, "child_graceful_kill_limit": "1d"})
    section = settings.schedules
    assert section and (section.alive_time, section.ledger_retention, section.task_timeout) == (90, 2_419_200, 3600)
    assert (settings.child_heartbeat_limit, settings.child_graceful_kill_limit) == (30, 86400)
    assert section.retry_wait == Backoff(first=10, factor=2, limit=120)


def test_variables_are_expanded_and_then_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKERS", "4")
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.delenv("UNSET", raising=False)
    settings = from_mapping(
        {**SQLITE, "processors": "${WORKERS}", "app": ["${UNSET:-jobs}:app"], "alive_time": "${EMPTY:-60}"}
    )
    assert settings.processors == 4
    assert [section.app for section in settings.sections] == [("jobs:app",)]
    assert settings.schedules and settings.schedules.alive_time == 60


def test_the_env_file_s_variables_replace_those_of_the_process(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reload gets the edited values, although the process keeps the environment with which it was started."""
    monkeypatch.setenv("PASSWORD", "of the process")
    monkeypatch.setenv("FOLDER", ".")
    secrets = file.with_name("environment")
    file.write_text("development:\n  type: rdb\n  env_file: ${FOLDER}/environment\n  url: mysql://u:${PASSWORD}@h/d\n")
    secrets.write_text("# a comment\nexport PASSWORD='old # ${FOLDER}'\n\nUNUSED=\n")
    found = load(file).schedules
    assert found and found.url == "mysql://u:old # ${FOLDER}@h/d"
    secrets.write_text("PASSWORD=new\n")
    changed = load(file)
    assert changed.schedules and changed.schedules.url == "mysql://u:new@h/d"
    assert changed.env_file == secrets
    assert os.environ["PASSWORD"] == "of the process", "handlers do not get the file's variables"


def test_a_value_may_come_from_a_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(file.parent / "credentials"))
    (file.parent / "credentials").mkdir()
    (file.parent / "credentials/password").write_text("${PASSWORD}\n")
    for reference in (
        "credentials/password",
        f"{file.parent}/credentials/password",
        "${CREDENTIALS_DIRECTORY}/password",
    ):
        file.write_text(f"development:\n  type: rdb\n  url: mysql://u:${{file:{reference}}}@h/d\n")
        found = load(file).schedules
        assert found and found.url == "mysql://u:${PASSWORD}@h/d"


def test_only_the_chosen_environment_needs_its_variables(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNSET", raising=False)
    file.write_text(file.read_text() + "production:\n  type: rdb\n  url: ${UNSET}\n")
    assert load(file, "development").environment == "development"


def test_relative_paths_start_at_the_file_s_folder(file: Path, tmp_path: Path) -> None:
    file.write_text(
        file.read_text() + "  log: logs/psched.log\n  pid_file: ../run/pid\n  include: .\n"
        "  require: [jobs, ./more.py]\n  tls: {ca: ca.pem, verify: ca}\n"
    )
    settings = load(file, "development")
    assert settings.schedules is not None
    assert settings.schedules.url == f"sqlite:///{tmp_path}/psched.db"
    assert settings.schedules.tls == {"ca": f"{tmp_path}/etc/ca.pem", "verify": "ca"}
    assert settings.log == tmp_path / "etc/logs/psched.log"
    assert settings.pid_file == tmp_path / "run/pid"
    [section] = settings.sections
    assert section.include == (f"{tmp_path}/etc",)
    assert section.require == ("jobs", f"{tmp_path}/etc/more.py")
    assert settings.path == file


def test_a_tilde_is_a_home_folder_and_an_unknown_user_s_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    settings = from_mapping({**SQLITE, "log": "~/log", "pid_file": "~nobody-at-all/pid"}, base=Path("/etc"))
    assert (settings.log, settings.pid_file) == (Path("/home/me/log"), Path("/etc/~nobody-at-all/pid"))


def test_relative_paths_in_code_start_at_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert schedules(url="sqlite:///here.db").url == f"sqlite:///{tmp_path}/here.db"
    assert (
        schedules(url="sqlite+pysqlite:///here.db?timeout=3").url == f"sqlite+pysqlite:///{tmp_path}/here.db?timeout=3"
    )


@pytest.mark.parametrize(
    ("type_", "url"),
    [
        ("rdb", "sqlite://"),
        ("rdb", "sqlite:///:memory:"),
        ("rdb", "mysql://u:p%40:w@h/d?charset=utf8mb4"),
        ("redis", "redis://h/0"),
        ("redis", "rediss://u:p%40:w@h:6380/3?read_timeout=3"),
        ("redis", "unix:///run/redis.sock?db=2"),
    ],
)
def test_other_urls_stay_as_they_are(type_: str, url: str) -> None:
    assert schedules(type=type_, url=url).url == url


def test_never_and_none_mean_no_limit() -> None:
    keys = {"child_graceful_kill_limit": "never", "max_request_per_child": "none", "task_timeout": "never"}
    settings = from_mapping({**SQLITE, **keys, "max_attempts": "none", "log": "stderr"})
    assert (settings.child_graceful_kill_limit, settings.max_request_per_child, settings.log) == (None, None, None)
    assert settings.schedules and settings.schedules.task_timeout is settings.schedules.max_attempts is None


def test_zero_is_a_number() -> None:
    settings = from_mapping({**SQLITE, "child_graceful_kill_limit": 0, "retry_wait": 0})
    assert settings.child_graceful_kill_limit == 0
    assert settings.schedules and settings.schedules.retry_wait == 0


def test_the_environment_is_the_argument_then_the_variable_then_development(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(file.read_text() + "staging:\n  type: rdb\n  url: sqlite://\n")
    monkeypatch.delenv("PSCHED_ENV", raising=False)
    monkeypatch.delenv("RAILS_ENV", raising=False)
    assert load(file).environment == "development"
    monkeypatch.setenv("PSCHED_ENV", "staging")
    assert load(file).environment == "staging"
    assert load(file, "development").environment == "development"


def test_anchors_and_merge_keys_may_share_settings(file: Path) -> None:
    file.write_text(
        "base: &base\n  type: rdb\n  url: sqlite://\n  processors: 2\ndevelopment:\n  <<: *base\n  processors: 3\n"
    )
    assert load(file, "development").processors == 3


def test_coerce_takes_settings_a_mapping_or_a_path(file: Path) -> None:
    settings = from_mapping(SQLITE)
    assert coerce(settings) == settings
    assert coerce(SQLITE) == settings
    assert coerce(str(file), "development") == coerce(file, "development") == load(file, "development")


def test_a_retry_wait_may_grow_and_differ_between_the_sections() -> None:
    settings = from_mapping(
        {**SQLITE, "retry_wait": {"first": 2, "limit": 60}, "schedules": {"retry_wait": 5}, "queue": {}}
    )
    assert settings.schedules and settings.queue
    assert settings.schedules.retry_wait == 5
    assert settings.queue.retry_wait == Backoff(first=2, factor=2, limit=60, jitter=0.2)


def test_the_wait_after_a_failure_grows_unless_attempts_are_not_counted() -> None:
    assert schedules(type="rdb", url="sqlite://").retry_wait == Backoff(first=10, factor=2, limit=300)
    assert schedules(type="redis", url="redis://h").retry_wait == Backoff(first=10, factor=2, limit=300)
    assert schedules(type="rdb_compat", url="sqlite://").retry_wait == 300


def test_max_attempts_of_schedules_and_queue_and_retention_of_the_queue() -> None:
    settings = from_mapping(
        {**SQLITE, "max_attempts": 9, "schedules": {}, "queue": {"retention_time": 0, "max_attempts": 8}}
    )
    assert settings.queue and settings.schedules
    assert (settings.queue.max_attempts, settings.queue.retention_time) == (8, 0)
    assert settings.schedules.max_attempts == 9
    assert from_mapping({**SQLITE, "max_attempts": "none"}).sections[0].max_attempts is None


def test_a_section_may_have_an_application_of_its_own() -> None:
    settings = from_mapping({**SQLITE, "app": "a:app", "schedules": {}, "queue": {"app": ["q:app", "q:More"]}})
    assert [section.app for section in settings.sections] == [("a:app",), ("q:app", "q:More")]


def test_the_command_line_is_laid_over_every_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    configured = {**SQLITE, "app": "a:app", "include": "/inc", "require": "one", "queue": {"app": "q:app"}}
    given = from_mapping(configured).with_application(("b:app",), ("lib",), ("two", "x.py"))
    assert given.queue is not None
    assert given.queue.app == ("b:app",)
    assert given.queue.include == (f"{tmp_path}/lib", "/inc")
    assert given.queue.require == ("one", "two", f"{tmp_path}/x.py")
    untouched = from_mapping(configured).with_application((), (), ())
    assert untouched == from_mapping(configured)


def test_types_restrict_a_section_and_the_command_line_says_instead() -> None:
    configured = {**SQLITE, "types": "mail", "schedules": {"types": ["video.*"]}, "queue": {}}
    settings = from_mapping(configured)
    assert settings.schedules and settings.queue
    assert (settings.schedules.types, settings.queue.types) == (("video.*",), ("mail",))
    given = settings.with_application((), (), (), ("a.*, b", "c"))
    assert given.schedules and given.queue
    assert given.schedules.types == given.queue.types == ("a.*", "b", "c")
    assert settings.with_application((), (), ()) == settings


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        from_mapping(SQLITE).processors = 2


def test_a_password_is_never_shown() -> None:
    settings = from_mapping({"type": "rdb", "url": "mysql://psched:s3cret@db:3306/psched?ssl_password=s3cret"})
    assert settings.schedules is not None
    assert settings.schedules.masked_url == "mysql://psched:***@db:3306/psched?ssl_password=***"
    assert "s3cret" not in repr(settings) + str(settings)
    with pytest.raises(ConfigError, match="table") as caught:
        from_mapping({**SQLITE, "url": "mysql://u:s3cret@h/d", "table": "mysql://u:s3cret@h/d"})
    assert "s3cret" not in str(caught.value)
    assert masked_url("mysql://u:a:b@c@h/d") == "mysql://u:***@h/d"
    assert masked_url("sqlite:///file.db") == "sqlite:///file.db"


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("redis://s3cret@host:6379/0", "redis://***@host:6379/0"),
        ("rediss://s3/cr:et@host/0?db=1", "rediss://***@host/0?db=1"),
        ("unix://s3cret@/run/redis.sock?db=0", "unix://***@/run/redis.sock?db=0"),
        ("redis://user:s3cret@host/0", "redis://user:***@host/0"),
        ("redis://host/0", "redis://host/0"),
        ("postgresql://u@h/d?options=-c%20app.key%3Ds3cret&sslmode=require", "postgresql://u@h/d?options=***&sslmode=require"),
        ("postgresql://u@h/d?o%70tions=-capp.key%3Ds3cret", "postgresql://u@h/d?o%70tions=***"),
        ("mysql://u@h/d?auth_token=s3cret&client_secret=s3cret&charset=utf8", "mysql://u@h/d?auth_token=***&client_secret=***&charset=utf8"),
    ],
)  # fmt: skip
def test_secrets_are_masked_wherever_a_url_has_them(url: str, masked: str) -> None:
    assert masked_url(url) == masked


def test_the_example_mentions_every_key_and_can_be_used_with_all_of_them(file: Path) -> None:
    file.write_text(text := EXAMPLE.read_text())
    file.with_name("environment").write_text("PSCHED_DATABASE_PASSWORD=secret\n")
    keys = {field.name for kind in (Section, Settings) for field in fields(kind)} - {"environment", "path"}
    written = set(re.findall(r"^  #?(\w+):", text, re.MULTILINE))
    assert written == keys
    assert load(file, "production").processors == 4
    assert load(file, "development").schedules is not None


def test_the_example_tells_the_true_defaults(file: Path) -> None:
    file.with_name("environment").write_text("PSCHED_DATABASE_PASSWORD=secret\n")
    file.write_text(re.sub(r"^  #(\w+|  \w+):", r"  \1:", EXAMPLE.read_text(), flags=re.MULTILINE))
    shown, default = load(file, "production"), from_mapping(SQLITE)
    assert shown.schedules and shown.queue and default.schedules
    examples = {"path", "environment", "schedules", "queue", "app", "include", "require", "processors"}
    examples |= {"env_file", "log", "pid_file", "metrics_file", "telemetry", "user", "group", "max_request_per_child"}
    assert told(shown, examples) == told(default, examples)
    examples = {"url", "tls", "app", "include", "require", "types", "task_timeout", "max_attempts", "on_late"}
    examples |= {"on_failure", "on_recovered", "hooks", "events", "healthchecks"}
    assert told(shown.schedules, examples) == told(default.schedules, examples)


def told(settings: Section | Settings, but: set[str]) -> dict[str, object]:
    """Return the values of all settings, except those in `but`."""
    return {field.name: getattr(settings, field.name) for field in fields(type(settings)) if field.name not in but}


@pytest.mark.parametrize("name", ["schedules", "queue"])
def test_settings_that_somebody_has_changed_are_tested_again(name: str) -> None:
    settings = from_mapping({**SQLITE, "schedules": {}, "queue": {}})
    wrong = evolve(getattr(settings, name), alive_time=-5)
    with pytest.raises(ConfigError, match=rf"{name}.alive_time: expected seconds or a duration \(90s, 5m, 2h\) > 0"):
        coerce(evolve(settings, **{name: wrong}))
    with pytest.raises(ConfigError, match="config: processors: expected"):
        coerce(evolve(settings, processors=0))


def test_what_goes_wrong_in_a_check_is_no_fault_of_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> object:
        raise RuntimeError(f"{name} needs a token")

    monkeypatch.setattr("psched.config.validators.check_name", broken)
    with pytest.raises(RuntimeError, match="needs a token"):
        from_mapping(SQLITE)


def test_a_key_of_perfectqueue_that_psched_lacks_names_what_replaces_it() -> None:
    replaced = [
        "child_heartbeat_kill_delay",
        "cleanup_interval",
        "connect_timeout",
        "debug",
        "detach_wait",
        "max_acquire",
        "prefetch_break_types",
        "sslca",
    ]
    for key in replaced:
        with pytest.raises(ConfigError, match=f"^config: {key}: a key of PerfectQueue; [^;]+"):
            from_mapping({"type": "rdb_compat", "url": "mysql2://u:p@h/d", "table": "t", key: 1})


_PERFECTQUEUE = {
    "alive_time": 100,
    "child_fork_frequency_limit": 5.0,
    "child_graceful_kill_limit": 60,
    "child_heartbeat_interval": 2,
    "child_heartbeat_limit": 10.0,
    "child_kill_interval": 2.0,
    "disable_resource_limit": True,
    "log": "log/perfectqueue.log",
    "max_request_per_child": 100,
    "poll_interval": 1.0,
    "processor_type": "process",
    "processors": 4,
    "retention_time": 300,
    "retry_wait": 300,
    "task_heartbeat_interval": 2,
    "task_prefetch": 0,
    "use_connection_pooling": True,
}


def test_a_file_of_perfectqueue_is_read_as_it_is() -> None:
    settings = from_mapping({"type": "rdb_compat", "url": "mysql2://u:p@h/d", "table": "t", **_PERFECTQUEUE})
    assert {name: getattr(settings.sections[0], name, None) for name in ("task_prefetch", "alive_time")} == {
        "task_prefetch": 0,
        "alive_time": 100,
    }
    assert settings.max_request_per_child == 100


def test_counters_are_beside_the_pid_file_that_is_held(tmp_path: Path) -> None:
    def path(pid_file: Path | None = None, **config: str) -> Path | None:
        return from_mapping({**SQLITE, **config}, base=tmp_path).metrics_path(pid_file)

    assert path() is None
    assert path(pid_file=tmp_path / "pid") == tmp_path / "pid.metrics"
    assert path(metrics_file="counters") == tmp_path / "counters"
    assert path(pid_file=tmp_path / "pid", metrics_file="none") is None

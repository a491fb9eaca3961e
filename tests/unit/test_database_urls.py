"""Database URLs, timeouts and encryption: what is accepted, what is refused, and that no message shows a password."""

from __future__ import annotations

import os
import re
import ssl
import sys
import tomllib
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest
from sqlalchemy.exc import OperationalError

from faultlab import prerequisites
from psched.backends import open_stores
from psched.backends.common.connection_options import Tls
from psched.backends.sql import open_database
from psched.cli.errors import DatabaseError, database_errors
from psched.config import from_mapping
from psched.errors import ConfigError
from psched.store import StoreSettings

SPELLINGS = {
    "sqlite:///psched.db": "sqlite+pysqlite",
    "mysql://u:p@h/d": "mysql+pymysql",
    "mysql2://u:p@h/d": "mysql+pymysql",
    "mariadb://u:p@h/d": "mysql+pymysql",
    "mariadb+pymysql://u:p@h/d": "mysql+pymysql",
    "postgres://u:p@h/d": "postgresql+psycopg",
    "postgresql://u:p@h/d": "postgresql+psycopg",
    "postgresql+psycopg://u:p@h/d": "postgresql+psycopg",
}


@pytest.mark.parametrize("url", SPELLINGS)
def test_each_spelling_of_a_url_takes_its_driver(url: str) -> None:
    assert open_database(url, {}).dialect.url.drivername == SPELLINGS[url]


@pytest.mark.parametrize(
    "url",
    [
        "psched.db",
        "",
        "oracle://u:secret@h/d",
        "base://u:secret@h/d",
        "database://u:secret@h/d",
        "../x://u:secret@h/d",
        "mysql://u:secret@h:port/d",
        "mysql+nosuch://u:secret@h/d",
        "mysql+aiomysql://u:secret@h/d",
        "postgresql+asyncpg://u:secret@h/d",
        "mysql://u:secret@h/d?read_timeout=soon",
        "mysql://u:secret@h/d?connect_timeout=-1",
        "mysql://u:secret@h/d?local_infile=maybe",
        "sqlite:///secret.db?nosuch=x",
        "sqlite:///secret.db?check_same_thread=maybe",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match="url|driver") as caught:
        open_database(url, {})
    assert "secret" not in str(caught.value)


def test_an_option_that_sqlite_does_not_have_is_named() -> None:
    with pytest.raises(ConfigError, match="url: unknown option 'timeout'; the known options are .*read_timeout"):
        open_database("sqlite:///psched.db?timeout=5", {})


@pytest.mark.parametrize("option", ["ssl=true", "conv=x", "compress=1", "port=x"])
def test_an_option_whose_value_the_driver_cannot_use_is_named(option: str) -> None:
    database = open_database(f"mysql://u:secret@127.0.0.1:1/d?{option}", {})
    with pytest.raises(ConfigError, match="url: the driver .*, probably because of an option of the URL") as caught:
        database.run(lambda connection, _: None)
    assert option.partition("=")[0] in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "option",
    [
        "mysql://u:secret@h/d?cursorclass",
        "mysql+mysqldb://u:secret@h/d?cursorclass",
        "postgresql://u:secret@h/d?row_factory",
        "postgresql://u:secret@h/d?cursor_factory",
    ],
)
def test_an_option_that_needs_a_python_object_is_refused_before_the_login(option: str) -> None:
    if "mysqldb" in option:
        prerequisites.require_mysqlclient()
    with pytest.raises(ConfigError) as caught:
        open_database(f"{option}=x&read_timeout=3", {})
    name = option.rpartition("?")[2]
    assert str(caught.value) == f"url: the option {name} needs a Python object, which a URL cannot contain; remove it"


@pytest.mark.parametrize("value", ["x", "-1", "1.5", "1&prepare_threshold=2"])
def test_a_wrong_prepare_threshold_is_refused_before_the_login(value: str) -> None:
    with pytest.raises(ConfigError, match=r"url: prepare_threshold must be a whole number ≥ 0, got ") as caught:
        open_database(f"postgresql://u:secret@h/d?prepare_threshold={value}", {})
    assert "secret" not in str(caught.value)


def test_prepare_threshold_is_passed_to_psycopg_as_a_number() -> None:
    options = open_database("postgresql://u:p@h/d?prepare_threshold=0", {}).dialect.engine_options()
    assert options["connect_args"]["prepare_threshold"] == 0


def test_a_driver_that_is_not_installed_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("MySQLdb", "psycopg", "psycopg2", "redis"):
        monkeypatch.setitem(sys.modules, module, None)
    for module in [name for name in sys.modules if name.startswith("psched.backends.redis")]:
        monkeypatch.delitem(sys.modules, module)
    for type_, url, user, package in [
        ("rdb", "mysql+mysqldb://u:p@h/d", "mysql+mysqldb://", "psched[mysqlclient]"),
        ("rdb_compat", "postgres://u:p@h/d", "postgresql://", "psched[postgresql]"),
        ("rdb", "postgresql+psycopg2://u:p@h/d", "postgresql+psycopg2://", "psycopg2"),
        ("redis", "redis://h/0", "type redis", "psched[redis]"),
    ]:
        with pytest.raises(ConfigError) as caught:
            open_stores(type_, StoreSettings(url=url, holder="h", schedules="schedules"))
        assert str(caught.value) == f"the driver of {user} is not installed: pip install '{package}'"


def test_a_driver_without_its_system_library_is_reported_on_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "psycopg.py").write_text("raise ImportError('no pq wrapper\\n- libpq library not found')")
    monkeypatch.syspath_prepend(tmp_path)
    for module in [name for name in sys.modules if name.partition(".")[0] == "psycopg"]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(ConfigError) as caught:
        open_database("postgresql://u:p@h/d", {})
    assert str(caught.value) == (
        "the driver of postgresql:// needs a system library that is missing: "
        "no pq wrapper - libpq library not found; "
        "install it, or pip install 'psched[postgresql]'"
    )


def test_the_core_has_no_driver_but_pymysql_and_each_extra_that_messages_name_exists() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    core = {re.split(r"[^\w-]", requirement)[0].lower() for requirement in project["dependencies"]}
    assert core & {"pymysql", "psycopg", "redis", "mysqlclient"} == {"pymysql"}
    assert project["optional-dependencies"].keys() == {
        "postgresql",
        "postgresql-system",
        "mysqlclient",
        "redis",
        "django",
        "flask",
        "otel",
        "ics",
        "prometheus",
        "sentry",
        "web",
    }


@pytest.mark.parametrize(("verify", "mode"), [("full", "VERIFY_IDENTITY"), ("ca", "VERIFY_CA"), ("none", "REQUIRED")])
def test_mysqlclient_verifies_as_configured(verify: str, mode: str) -> None:
    prerequisites.require_mysqlclient()
    options = open_database("mysql+mysqldb://u:p@h/d?read_timeout=3", {"verify": verify}).dialect.engine_options()
    assert (options["connect_args"]["ssl_mode"], options["connect_args"]["read_timeout"]) == (mode, 3)
    plain = open_database("mysql+mysqldb://u:p@h/d", {}).dialect.engine_options()
    assert not {"ssl", "ssl_mode"} & plain["connect_args"].keys()


def test_timeouts_in_the_url_are_ours_and_the_drivers_own_options_stay() -> None:
    dialect = open_database("mysql://u:p@h/d?connect_timeout=0.5&read_timeout=3&charset=latin1", {}).dialect
    assert (dialect.timeouts.connect, dialect.timeouts.read) == (0.5, 3)
    assert dict(dialect.url.query) == {"charset": "latin1"}


def test_the_server_gives_a_statement_up_before_the_client_does() -> None:
    timeouts = open_database("mysql://u:p@h/d", {}).dialect.timeouts
    assert timeouts.lock < timeouts.statement < timeouts.read


@pytest.mark.parametrize("tls", [{"cafile": "x"}, {"verify": "maybe"}])
def test_encryption_that_cannot_be_meant_is_refused(tls: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="tls"):
        open_database("postgresql://u:p@h/d", tls)


def test_encryption_with_a_certificate_alone_needs_an_authority_to_trust() -> None:
    with pytest.raises(ConfigError, match=r"tls\.ca"):
        open_database("postgresql://u:p@h/d", {"verify": "ca"})


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for url in ("mysql://u:p@h/d", "postgresql://u:p@h/d"):
        with pytest.raises(ConfigError, match=r"tls: ca: .*missing\.pem"):
            open_database(url, {"ca": str(tmp_path / "missing.pem")})


def test_a_file_that_is_no_certificate_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(ConfigError, match="tls: a certificate"):
        open_database("mysql://u:p@h/d", {"ca": str(tmp_path / "ca.pem")})


@pytest.mark.parametrize(
    ("verify", "checks_host", "mode"),
    [("full", True, ssl.CERT_REQUIRED), ("ca", False, ssl.CERT_REQUIRED), ("none", False, ssl.CERT_NONE)],
)
def test_mysql_verifies_as_it_is_reported(verify: str, checks_host: bool, mode: ssl.VerifyMode) -> None:
    options = open_database("mysql://u:p@h/d", {"verify": verify}).dialect.engine_options()
    context = options["connect_args"]["ssl"]
    assert (context.check_hostname, context.verify_mode) == (checks_host, mode)


def test_postgresql_verifies_as_it_is_reported(tmp_path: Path) -> None:
    files = {name: str(tmp_path / name) for name in ("ca", "cert", "key")}
    for file in files.values():
        Path(file).touch()
    options = open_database("postgresql://u:p@h/d", files).dialect.engine_options()
    found = {name: value for name, value in options["connect_args"].items() if name.startswith("ssl")}
    assert found == {
        "sslmode": "verify-full",
        "sslrootcert": files["ca"],
        "sslcert": files["cert"],
        "sslkey": files["key"],
    }


def test_no_encryption_is_asked_for_unless_it_is_configured() -> None:
    assert Tls.of({}) is None
    assert "ssl" not in open_database("mysql://u:p@h/d", {}).dialect.engine_options()["connect_args"]


def test_opening_a_store_connects_to_nothing() -> None:
    for type_ in ("rdb", "rdb_compat"):
        for url in ("mysql://u:p@127.0.0.1:1/d", "postgresql://u:p@127.0.0.1:1/d", "sqlite:////nowhere/at/all.db"):
            assert open_stores(type_, StoreSettings(url=url, holder="h", schedules="s")).schedules is not None


def test_connections_share_what_encryption_costs_unless_it_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymysql.connections.Connection.connect", lambda connection: None)
    dialect = open_database("mysql://u:p@h/d", {}).dialect
    one, two = (dialect.connect(None, [], {"host": "h"}) for _ in range(2))
    assert one.ctx is two.ctx
    assert (one.ctx.verify_mode, one.ctx.check_hostname) == (ssl.CERT_NONE, False)
    context = ssl.create_default_context()
    assert dialect.connect(None, [], {"host": "h", "ssl": context}).ctx is context


def test_a_file_that_was_missing_may_be_made_by_another_process_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = os.path.lexists

    def overtaken(path: str) -> bool:
        found = look(path)
        Path(path).touch()
        return found

    monkeypatch.setattr("os.path.lexists", overtaken)
    url = f"sqlite:///{tmp_path / 'psched.db'}"
    store = open_stores("rdb", StoreSettings(url, "host/test/1", schedules="schedules")).schedules
    assert store is not None
    with closing(store), pytest.raises(ConfigError, match="psched init"):
        store.check_tables()


def test_a_command_whose_user_is_refused_names_the_remedy() -> None:
    section = from_mapping({"type": "rdb", "url": "postgresql://me:secret@h/d"}).schedules
    assert section is not None
    store = Mock(is_unavailable=Mock(return_value=False), is_refused=Mock(return_value=True))
    with pytest.raises(DatabaseError) as caught, database_errors(section, store):
        raise OperationalError("SELECT 1", {}, Exception("wrong password"))
    told = str(caught.value)
    assert told.startswith("the database postgresql://me:***@h/d refuses this user: ")
    assert "wrong password" in told
    assert told.endswith("(correct `url:`, or the user's password or rights on the server)")

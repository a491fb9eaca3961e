"""URLs of Redis: what is accepted, what is refused, and that no message shows a password."""

from __future__ import annotations

import pytest
from redis import exceptions

from psched.backends.redis.client import is_temporary, located
from psched.errors import ConfigError


def test_a_url_names_host_and_user() -> None:
    options = located("redis://user:p%40ss@host:6380/3", {}).options
    assert [options[name] for name in ("host", "port", "username", "password", "db")] == [
        "host",
        6380,
        "user",
        "p@ss",
        3,
    ]
    assert located("redis://host", {}).options["db"] == 0
    local = located("unix://:secret@/run/redis.sock?db=2", {}).options
    assert [local[name] for name in ("path", "password", "db")] == ["/run/redis.sock", "secret", 2]
    assert located("unix:///run/redis.sock", {}).options["path"] == "/run/redis.sock"


def test_every_step_has_a_bound_and_the_url_may_set_it() -> None:
    options = located("redis://h", {}).options
    assert (options["socket_connect_timeout"], options["socket_timeout"]) == (5, 10)
    options = located("redis://h?connect_timeout=0.5&read_timeout=2", {}).options
    assert (options["socket_connect_timeout"], options["socket_timeout"]) == (0.5, 2)


@pytest.mark.parametrize(("text", "cluster"), [("", None), ("?cluster=true", True), ("?cluster=false", False)])
def test_whether_it_is_a_cluster_is_asked_or_said(text: str, cluster: bool | None) -> None:
    assert located(f"redis://h/0{text}", {}).cluster is cluster


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://u:s3cret@h/d", "mysql:// is not a scheme of Redis"),
        ("redis://:s3cret@h:port/0", "not a URL of Redis"),
        ("redis://:s3cret@h/zero", "the database must be a number"),
        ("redis://:s3cret@h/0?db=-1", "the database must be a number"),
        ("redis://:s3cret@h/0?read_timeout=soon", "read_timeout must be a number of seconds, got 'soon'"),
        ("redis://:s3cret@h/0?read_timeout=0", "read_timeout must be a number of seconds"),
        ("redis://:s3cret@h/0?cluster=perhaps", "cluster must be auto, true or false"),
        ("redis://:s3cret@h/0?timeout=3", "unknown option 'timeout'"),
        ("redis://:12/s3cret@h:6379/0", "%2F"),
        ("redis://:12?s3cret@h:6379/0", "%3F"),
        ("redis://:12#s3cret@h:6379/0", "%23"),
        ("redis://:12[s3cret@h:6379/0", "not a URL of Redis"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused_without_its_password(url: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        located(url, {})
    assert words in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_location_does_not_show_its_password() -> None:
    assert "s3cret" not in repr(located("redis://:s3cret@h/0", {}))


PASSING = [
    exceptions.ConnectionError("Connection closed by server."),
    exceptions.TimeoutError("Timeout reading from socket"),
    exceptions.BusyLoadingError("Redis is loading the dataset in memory"),
    exceptions.ReadOnlyError("You can't write against a read only replica."),
    exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
    exceptions.MasterDownError("Link with MASTER is down"),
    exceptions.ClusterDownError("The cluster is down"),
    exceptions.TryAgainError("Multiple keys request during rehashing of slot"),
    exceptions.ResponseError("max number of clients reached"),
    exceptions.ResponseError("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist"),
    exceptions.ResponseError("NOREPLICAS Not enough good replicas to write."),
    exceptions.ResponseError("BUSY Redis is busy running a script."),
    exceptions.ResponseError("Error running script (call to f_1): @user_script:1: -READONLY You can't write against a"),
    exceptions.RedisClusterException("Redis Cluster cannot be connected."),
]
LASTING = [
    exceptions.AuthenticationError("invalid username-password pair or user is disabled."),
    exceptions.AuthorizationError("no"),
    exceptions.NoPermissionError("this user has no permissions to run the 'evalsha' command"),
    exceptions.ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"),
    exceptions.ResponseError("the table busy_task does not exist; create it with: psched init"),
    exceptions.RedisClusterException("Cluster mode is not enabled on this node"),
    ValueError("LOADING"),
]


@pytest.mark.parametrize("error", PASSING, ids=str)
def test_errors_that_pass_by_themselves(error: Exception) -> None:
    assert is_temporary(error)


@pytest.mark.parametrize("error", LASTING, ids=str)
def test_errors_that_do_not(error: Exception) -> None:
    assert not is_temporary(error)

"""After a refused login the next one waits. The tests set the clock."""

from __future__ import annotations

from itertools import pairwise

import pytest

from psched.backends.common.retries import LoginBackoff


class RefusedError(Exception):
    """The server's error."""


class Server:
    """A server that refuses logins until the test lets it accept them. It records the times of the logins."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.asked: list[float] = []
        self.accepts = False
        self.error: Exception = RefusedError("wrong password")
        self.logins = LoginBackoff(lambda: self.time, lambda least, most: most)

    def log_in(self) -> str:
        return self.logins.log_in(self._connect, lambda error: isinstance(error, RefusedError))

    def _connect(self) -> str:
        self.asked.append(self.time)
        if not self.accepts:
            raise self.error
        return "connection"


def test_a_server_that_refuses_is_asked_less_and_less_often_and_everybody_is_reported_what_it_said() -> None:
    server = Server()
    for _ in range(3000):
        with pytest.raises(RefusedError, match="wrong password"):
            server.log_in()
        server.time += 0.25
    pauses = [after - before for before, after in pairwise(server.asked)]
    assert pauses[:6] == [0.75, 1.5, 3.0, 6.0, 12.0, 24.0]
    assert set(pauses[6:]) == {LoginBackoff.LONGEST}


def test_a_login_that_is_accepted_makes_the_next_refusal_the_first() -> None:
    server = Server()
    for _ in range(3):
        with pytest.raises(RefusedError):
            server.log_in()
        server.time += server.logins.pause()
    server.accepts = True
    assert server.log_in() == "connection"
    server.accepts = False
    with pytest.raises(RefusedError):
        server.log_in()
    assert server.logins.pause() == 0.75


def test_other_errors_make_nobody_wait() -> None:
    server = Server()
    server.error = OSError("connection refused")
    for _ in range(3):
        with pytest.raises(OSError, match="connection refused"):
            server.log_in()
    assert len(server.asked) == 3
    assert server.logins.pause() == 0

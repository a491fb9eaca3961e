"""A forked process does not use its parent's connections."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import sqlalchemy as sa

from faultlab.servers import Server
from psched.testing.inherited_connections import InheritedConnections

_FORK = multiprocessing.get_context("fork")


def session(engine: sa.Engine) -> int:
    with engine.connect() as connection:
        return int(connection.scalar(sa.text("SELECT pg_backend_pid()")) or 0)


def test_engines_connect_anew_in_a_forked_process(postgresql: Server, tmp_path: Path) -> None:
    """This holds for engines that connected before `start`, and for those that connected later."""
    file = tmp_path / "sessions"
    with postgresql.database() as url:
        engines = [sa.create_engine(url), sa.create_engine(url)]
        before = [session(engines[0])]
        inherited = InheritedConnections()
        inherited.start()
        before.append(session(engines[1]))

        def run() -> None:
            inherited.leave_to_parent()
            file.write_text(json.dumps([session(engine) for engine in engines]))

        process = _FORK.Process(target=run)  # type: ignore[attr-defined]
        process.start()
        process.join()
        inherited.stop()
        assert process.exitcode == 0
        assert not {*before} & {*json.loads(file.read_text())}
        assert [session(engine) for engine in engines] == before
        for engine in engines:
            engine.dispose()

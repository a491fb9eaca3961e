"""What transactions see of one another, whatever the server's default is."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from psched.store import ScheduleStore
from tests.stores.bench import FAR_OFF, Bench, soon

on_servers = pytest.mark.parametrize("bare", [("rdb", "mariadb"), ("rdb", "postgresql")], indirect=True, ids="-".join)


@on_servers
def test_a_transaction_sees_what_others_have_committed_since_it_began(
    bench: Bench, store: ScheduleStore, other: ScheduleStore
) -> None:
    """This needs READ COMMITTED.

    MariaDB's and MySQL's default, REPEATABLE READ, would also lock the gaps beside the rows.
    """
    bench.add(store, "key")
    claim = bench.take(store, "key")
    seen: list[int] = []

    def look(connection: sa.Connection) -> None:
        count = sa.select(sa.func.count()).select_from(sa.table(bench.table))
        seen.append(connection.execute(count).scalar_one())
        bench.add(other, "new")
        seen.append(connection.execute(count).scalar_one())

    assert store.advance(claim, FAR_OFF, FAR_OFF, soon(), look) is None
    assert seen == [1, 2]

"""What of an entry of the ledger is known before it is made, as the scripts on Redis take it. Any process."""

from __future__ import annotations

import json

from psched.backends.rdb.schedule_rows import entry_columns
from psched.ledger import Entry
from psched.model import ScheduleRow


def entry_words(row: ScheduleRow, entry: Entry, reckoning: str) -> list[str | int]:
    """Return whether there was trouble, and members of a JSON object: what is known, and how many it stands for."""
    columns = entry_columns(row, entry) | {"reckoning": reckoning}
    known = {name: value for name, value in columns.items() if value is not None}
    return [known["trouble"], json.dumps(known, separators=(",", ":"))[1:-1]]

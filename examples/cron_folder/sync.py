"""Write a file of schedules for the scripts of a folder: python sync.py FOLDER > schedules.yml."""

import json
import re
import sys
from pathlib import Path

RULE = re.compile(r"^# cron: ((?:\S+ ){4}\S+)(?: (\S+))?$", re.MULTILINE)


def schedule_of(script: Path) -> dict[str, object]:
    """Return the schedule of a script. Its second line has a cron expression, and may have a time zone."""
    found = RULE.search(script.read_text())
    if found is None:
        sys.exit(f"{script}: the line '# cron: MINUTE HOUR DAY MONTH WEEKDAY [ZONE]' is missing")
    data = {"argv": [str(script.absolute())], "keep_output": True}
    return {"type": "command", "cron": found[1], "timezone": found[2] or "UTC", "data": data}


if __name__ == "__main__":
    schedules = {f"jobs.{script.stem}": schedule_of(script) for script in sorted(Path(sys.argv[1]).glob("*.sh"))}
    print(json.dumps({"owner": "jobs", "defaults": {"catch_up": "latest"}, "schedules": schedules}, indent=2))

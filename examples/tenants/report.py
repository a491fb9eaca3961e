"""Print for each tenant how many tasks of all tenants had run when its last task was done."""

from pathlib import Path

order = [line.split()[-1] for line in Path("psched.log").read_text().splitlines() if "worked for" in line]
for tenant in ("small-1", "small-2", "large"):
    print(f"{tenant}: done after {len(order) - order[::-1].index(tenant)} of {len(order)} tasks")
assert order[::-1].index("small-1") > 40, "a small tenant waits for a few tasks only"

"""Submit the tasks of a large tenant, then the tasks of two small tenants."""

import psched


def tasks_of(tenant: str, number: int) -> list[psched.NewTask]:
    """Return the tasks of a tenant. At most two of them run at a time."""
    return [psched.NewTask(f"{tenant}-{n}", "tenants.work", {}, user=tenant, max_running=2) for n in range(number)]


with psched.open_queue("etc/psched.yml") as queue:
    queue.submit_many(tasks_of("large", 100))
    for tenant in ("small-1", "small-2"):
        queue.submit_many(tasks_of(tenant, 5))

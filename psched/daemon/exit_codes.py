"""What a child's exit code tells its master (chosen after sysexits, where it has a word for it)."""

DONE = 0
"""Left in good order: a graceful stop, or `max_request_per_child` reached."""
FORCED = 75
"""Left by force and gave back what it held: an immediate stop, a timeout, a lease that could not be renewed."""
BOOT_FAILED = 78
"""Could not begin: the application does not load, or a table is missing."""
LOST_MASTER = 71
"""The master is gone, or the pipe to it."""

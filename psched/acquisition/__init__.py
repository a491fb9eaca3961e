"""Acquires due rows as tasks, for the types that have handlers."""

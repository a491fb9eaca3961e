"""Polls for due tasks, runs them, renews their leases and settles them, in a child or in an embedded scheduler."""

"""Polls for due tasks, runs, renews and settles them: in a child, or in an embedded scheduler."""

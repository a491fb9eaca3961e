"""Schedules: their rules, their occurrences, and the audit of them."""

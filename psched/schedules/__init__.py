"""Schedules: their rules, their occurrences, and their audit."""

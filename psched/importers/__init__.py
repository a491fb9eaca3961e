"""Reads the schedules of other schedulers into a file of schedules, and finds what psched would do differently."""

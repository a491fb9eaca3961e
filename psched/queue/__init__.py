"""The queue of background tasks."""

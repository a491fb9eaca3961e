"""Orders, and their background tasks."""

"""Orders, and what is done about them in the background."""

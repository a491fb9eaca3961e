"""A plugin of psched."""

"""A sample project: a shop that confirms its orders in the background."""

"""Takes due rows from a store as tasks, and settles them."""

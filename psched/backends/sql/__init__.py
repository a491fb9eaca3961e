"""What the stores on SQL databases have in common. Used in children and clients."""

"""Ready-made applications. Each is loaded only by naming it."""

"""Ready-made applications. Each is loaded only if the configuration names it."""

"""Other schedulers and queues at the same work, with their best documented settings, in a virtualenv of their own."""

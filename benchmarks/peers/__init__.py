"""Other schedulers and queues with the same workloads, with their fastest documented settings."""

"""Counters of a node in a file of shared memory: its processes write them, any other process reads them."""

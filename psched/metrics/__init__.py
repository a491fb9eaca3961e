"""Counters of a node in a file of shared memory. The node's processes write them; any other process can read them."""

"""Metrics for Prometheus, of one node and its database: over HTTP, or as a text file for the node exporter.

The node's part comes from the file of counters that its processes share, the database's part from `psched.insight`.
Only this package knows prometheus_client.
"""

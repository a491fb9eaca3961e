"""Metrics for Prometheus about one node and its database, over HTTP or as a text file for the node exporter.

The node's metrics come from the file of counters that its processes share. The database's metrics come from
`psched.insight`. Only this package imports prometheus_client.
"""

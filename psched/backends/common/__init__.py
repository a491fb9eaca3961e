"""Code that all backends share, such as the endings of leases, retries and the reading of rows."""

"""Code that all backends share, such as lease history, retries and the reading of rows."""

"""Code that all backends share, such as retries and the reading of rows."""

"""What all backends share: lease history, retries, reading of rows."""

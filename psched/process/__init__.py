"""What the master process and its children share."""

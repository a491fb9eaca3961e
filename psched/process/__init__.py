"""Code that the master process and its children share."""

"""The forked worker process, around the execution of its tasks."""

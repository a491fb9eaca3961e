"""The forked child process: its start, its heartbeats and its end. psched.execution runs its tasks."""

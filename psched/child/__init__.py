"""The forked child process: start, heartbeat, standby and end. psched.execution runs its tasks."""

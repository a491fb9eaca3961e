"""The forked worker process: start, heartbeat, standby and end. psched.execution runs its tasks."""

"""An application for compose.yaml; put yours here."""

import time

import psched

app = psched.App()


@app.task
def report(region: str, seconds: float = 0) -> None:
    """Work for some seconds."""
    print(f"report for {region}: started", flush=True)
    time.sleep(seconds)
    print(f"report for {region}: done", flush=True)

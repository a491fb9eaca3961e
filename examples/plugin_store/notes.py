"""Submit two tasks, one of which the store refuses."""

import psched

with psched.open_queue("etc/psched.yml") as queue:
    queue.submit("fine", "note", {"text": "hello"})
    try:
        queue.submit("leak", "note", {"password": "secret"})
    except ValueError as error:
        print("refused:", error)
    print([task.key for task in queue.list()])

"""The exceptions of psched, grouped by how the caller can react.

psched raises the database driver's errors unchanged. Only for a duplicate key it raises `AlreadyExistsError` instead.
"""


class ScheduleError(Exception):
    """Base class of the errors of schedules, queues and tasks."""


TaskError = ScheduleError


class AlreadyFinishedError(ScheduleError):
    """The run was settled before, perhaps with another outcome. This call changed nothing."""


class NotFoundError(ScheduleError):
    """No row has this key."""


class AlreadyExistsError(ScheduleError):
    """A row with this key exists. It may be a finished row that is still retained."""


class PreemptedError(ScheduleError):
    """The lease is lost: it ended, or another worker or client acquired or settled the row. Nothing was changed."""


class OutcomeUnknownError(ScheduleError):
    """The answer to a write under a lease was lost. Whether the write took effect is unknown.

    In both cases the lease is over. Do not repeat the write: either the row was settled as requested, or the row runs
    again.
    """


class NotSupportedError(ScheduleError):
    """The operation is not possible on this store, or for this schedule or task. The message says why."""


class ArgumentsError(ScheduleError):
    """The data of a task does not match the parameters of its function. The message names each difference."""


class CancelRequestedError(ScheduleError):
    """Cancellation of this task was requested."""


class IdempotentError(ScheduleError):
    """Mixin for errors which say that the row is already in the requested state.

    A client that only wants this state may ignore these errors.
    """


class IdempotentAlreadyFinishedError(AlreadyFinishedError, IdempotentError):
    """This task object has settled its run before. Perhaps the answer to that write was lost."""


class IdempotentAlreadyExistsError(AlreadyExistsError, IdempotentError):
    """A row with this key exists, and is equal to the row to create."""


class IdempotentNotFoundError(NotFoundError, IdempotentError):
    """The row to settle or delete no longer exists."""


class UnstorableResultError(ScheduleError):
    """The result of a run cannot be stored. The task fails for good, because a further run would fail, too."""


class NoResultError(ScheduleError):
    """The task has ended without a result: its type stores no results, or it was finished by hand."""


class TaskFailedError(ScheduleError):
    """The task has failed for good, so it has no result. `error`: the error that was stored with the task."""

    def __init__(self, message: str, error: str | None = None) -> None:
        super().__init__(message)
        self.error = error


class TaskCancelledError(ScheduleError):
    """The task was cancelled, so it has no result."""


class ResultTimeoutError(ScheduleError, TimeoutError):
    """The task did not end within the `timeout` of `result`. The task continues; its result can be requested again."""


RUN_IS_OVER = (PreemptedError, OutcomeUnknownError, NotFoundError, AlreadyFinishedError)
"""Errors of writes under a lease. Each of these errors means: this worker has nothing left to do for the run."""


class ConfigError(Exception):
    """The configuration, a cron expression, a time zone or a name is not valid. The message names the remedy.

    Each argument of the exception is one error. The message has a line for each error, with control characters escaped.
    """

    def __str__(self) -> str:
        from psched.error_messages import ESCAPES  # noqa: PLC0415 – `import psched` is quick

        return "\n".join([str(each).translate(ESCAPES) for each in self.args])


class PoolerError(ConfigError):
    """A connection pooler between psched and the database may run each transaction in another session."""


class ProcessStopError(Exception):
    """The process is stopping. Passed to `kill(reason)` of a running handler."""


class GracefulProcessStopError(ProcessStopError):
    """The process stops when the running task is done."""


class ImmediateProcessStopError(ProcessStopError):
    """The process stops now. Running tasks are released."""

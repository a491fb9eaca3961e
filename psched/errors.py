"""The exceptions of psched, grouped by what the caller can do about them.

Database errors are never turned into these, except that a duplicate key is `AlreadyExistsError`.
"""


class ScheduleError(Exception):
    """Base of the errors of schedules, queues and tasks."""


TaskError = ScheduleError


class AlreadyFinishedError(ScheduleError):
    """The run has been settled already, perhaps in another way; nothing was changed."""


class NotFoundError(ScheduleError):
    """No row has this key."""


class AlreadyExistsError(ScheduleError):
    """A row with this key exists; it may be finished and still retained."""


class PreemptedError(ScheduleError):
    """The lease is lost: it ended, or another worker or client took or settled the row. Nothing was changed."""


class OutcomeUnknownError(ScheduleError):
    """The answer to a write under a lease was lost, and it is unknown whether the write took effect.

    The lease is over either way. Do not repeat the write: the row has been settled as asked, or runs again.
    """


class NotSupportedError(ScheduleError):
    """This store does not support the operation; the message names the stores that do."""


class ArgumentsError(ScheduleError):
    """The data of a task does not fit the parameters of its function; the message names each difference."""


class CancelRequestedError(ScheduleError):
    """The cancellation of this task was requested."""


class IdempotentError(ScheduleError):
    """Mixin: the row is already in the requested state. An idempotent client may ignore the error."""


class IdempotentAlreadyFinishedError(AlreadyFinishedError, IdempotentError):
    """The same task object settled the run before; the answer may have been lost."""


class IdempotentAlreadyExistsError(AlreadyExistsError, IdempotentError):
    """The existing row is the one to be created."""


class IdempotentNotFoundError(NotFoundError, IdempotentError):
    """The row to settle or delete does not exist any more."""


class UnstorableResultError(ScheduleError):
    """The result of a run cannot be stored. Its task fails for good: a further run would fail in the same way."""


class NoResultError(ScheduleError):
    """The task has ended and has no result: its type stores none, or it was finished by hand."""


class TaskFailedError(ScheduleError):
    """The task whose result was asked for has failed for good. `error`: the error that was kept with it."""

    def __init__(self, message: str, error: str | None = None) -> None:
        super().__init__(message)
        self.error = error


class TaskCancelledError(ScheduleError):
    """The task whose result was asked for was cancelled."""


class ResultTimeoutError(ScheduleError, TimeoutError):
    """The task did not end within the `timeout` of `result`. It continues, and its result can be asked for again."""


RUN_IS_OVER = (PreemptedError, OutcomeUnknownError, NotFoundError, AlreadyFinishedError)
"""Errors of writes under a lease after which nothing is left to be done for the run."""


class ConfigError(Exception):
    """The configuration, a cron expression, a time zone or a name cannot be used; the message has the remedy."""


class PoolerError(ConfigError):
    """A connection pooler in front of the database may give each transaction another session."""


class ProcessStopError(Exception):
    """The process is stopping; given to `kill(reason)` of a running handler."""


class GracefulProcessStopError(ProcessStopError):
    """The process stops once the running task is done."""


class ImmediateProcessStopError(ProcessStopError):
    """The process stops now; running tasks are released."""

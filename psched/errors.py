"""The exceptions of psched: what went wrong, by what the caller can do about it. Used in every process.

A database error is never renamed into one of these; only a duplicate key is `AlreadyExistsError`.
"""


class ScheduleError(Exception):
    """Base of everything a schedule, a queue or a task refuses to do."""


TaskError = ScheduleError


class AlreadyFinishedError(ScheduleError):
    """The run was settled before, perhaps in another way than asked now; nothing was changed."""


class NotFoundError(ScheduleError):
    """No row has this key."""


class AlreadyExistsError(ScheduleError):
    """A row with this key exists, perhaps finished and still retained."""


class PreemptedError(ScheduleError):
    """The lease is no longer ours: it ended, or somebody else settled or took the row. Nothing was changed."""


class OutcomeUnknownError(ScheduleError):
    """The answer to a write under a lease was lost, and nothing tells any more whether the write took effect.

    The lease is over in any case. Do not repeat the write: the row may be run again, or may have been settled as asked.
    """


class NotSupportedError(ScheduleError):
    """This store cannot do what was asked, and says what can."""


class CancelRequestedError(ScheduleError):
    """Somebody asked for this task to be cancelled."""


class IdempotentError(ScheduleError):
    """Mixin: the state asked for is the state that was found. An idempotent client may ignore it."""


class IdempotentAlreadyFinishedError(AlreadyFinishedError, IdempotentError):
    """This very task object settled the run before, perhaps with an answer that was lost."""


class IdempotentAlreadyExistsError(AlreadyExistsError, IdempotentError):
    """The row that exists is the one that was to be created."""


class IdempotentNotFoundError(NotFoundError, IdempotentError):
    """The row to settle or delete is gone already."""


RUN_IS_OVER = (PreemptedError, OutcomeUnknownError, NotFoundError, AlreadyFinishedError)
"""What writing under a lease raises when there is nothing left to be done for the run."""


class ConfigError(Exception):
    """The configuration, a cron expression, a time zone or a name cannot be used; the message names the remedy."""


class PoolerError(ConfigError):
    """A connection pooler that may give each transaction another session stands between psched and the database."""


class ProcessStopError(Exception):
    """The process is stopping; given to `kill(reason)` of a running handler."""


class GracefulProcessStopError(ProcessStopError):
    """The process stops once the running task is done."""


class ImmediateProcessStopError(ProcessStopError):
    """The process stops now; what is running is given back."""

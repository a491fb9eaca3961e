"""The exceptions have the base classes on which users rely."""

from __future__ import annotations

import pytest

from psched import errors


@pytest.mark.parametrize(
    ("error", "base"),
    [
        (errors.AlreadyFinishedError, errors.ScheduleError),
        (errors.NotFoundError, errors.ScheduleError),
        (errors.AlreadyExistsError, errors.ScheduleError),
        (errors.PreemptedError, errors.ScheduleError),
        (errors.OutcomeUnknownError, errors.ScheduleError),
        (errors.NotSupportedError, errors.ScheduleError),
        (errors.CancelRequestedError, errors.ScheduleError),
        (errors.IdempotentError, errors.ScheduleError),
        (errors.GracefulProcessStopError, errors.ProcessStopError),
        (errors.ImmediateProcessStopError, errors.ProcessStopError),
    ],
)
def test_each_error_is_caught_by_its_base(error: type[Exception], base: type[Exception]) -> None:
    assert issubclass(error, base)


@pytest.mark.parametrize("name", ["AlreadyFinishedError", "AlreadyExistsError", "NotFoundError"])
def test_each_idempotent_kind_is_its_plain_kind_and_may_be_ignored(name: str) -> None:
    idempotent = getattr(errors, f"Idempotent{name}")
    assert issubclass(idempotent, getattr(errors, name))
    assert issubclass(idempotent, errors.IdempotentError)
    assert not issubclass(getattr(errors, name), errors.IdempotentError)


def test_each_fault_of_a_configuration_is_one_line() -> None:
    assert str(errors.ConfigError("a\nb.yml: \x1b[2J", "second")) == "a\\x0ab.yml: \\x1b[2J\nsecond"


def test_queue_code_may_say_task_error() -> None:
    assert errors.TaskError is errors.ScheduleError


@pytest.mark.parametrize("error", [errors.ConfigError, errors.ProcessStopError])
def test_who_catches_schedule_errors_catches_no_config_error_and_no_stop(error: type[Exception]) -> None:
    assert not issubclass(error, errors.ScheduleError)

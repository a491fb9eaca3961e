"""A handler class runs its steps in order, and its decider decides what follows an error."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from psched.application import Base, DefaultDecider, UndefinedDecisionError
from psched.errors import ImmediateProcessStopError, OutcomeUnknownError, PreemptedError
from psched.model import Policy, ScheduleRow
from tests.unit.fake_task import Ledger


class Recorder(Base):
    """Records its steps. `fails`: the name of the step that raises."""

    fails = ""
    prepared: bool | None = None

    def __init__(self, task: Any) -> None:
        super().__init__(task)
        self.steps: list[str] = []

    def before_perform(self) -> bool | None:
        self._step("before")
        return self.prepared

    def perform(self) -> None:
        self._step("perform")
        self.task.finish()

    def after_perform(self) -> None:
        self._step("after")

    def _step(self, name: str) -> None:
        self.steps.append(name)
        if name == self.fails:
            raise ValueError(f"{name} went wrong")


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def test_run_goes_through_before_perform_and_after(ledger: Ledger) -> None:
    handler = Recorder(ledger.task())
    handler.run()
    assert handler.steps == ["before", "perform", "after"]
    assert ledger.entries == [("finished",)]


def test_before_perform_may_call_the_run_off(ledger: Ledger) -> None:
    handler = Recorder(ledger.task())
    handler.prepared = False
    handler.run()
    assert handler.steps == ["before"]
    assert ledger.entries == []


def test_after_perform_is_called_also_when_perform_raised(ledger: Ledger) -> None:
    handler = Recorder(ledger.task())
    handler.fails = "perform"
    handler.run()
    assert handler.steps == ["before", "perform", "after"]


@pytest.mark.parametrize("step", ["before", "perform"])
def test_an_error_is_retried_and_its_traceback_logged_once(
    step: str, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    handler = Recorder(ledger.task())
    handler.fails = step
    handler.run()
    assert ledger.entries == [("retried", None, f"ValueError('{step} went wrong')")]
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert "key=key1 type=type1" in record.getMessage()


def test_a_handler_class_chooses_its_own_retry_wait(ledger: Ledger) -> None:
    handler = Recorder(ledger.task())
    handler.fails = "perform"
    handler.retry_wait = 0
    handler.run()
    assert [entry[:2] for entry in ledger.entries] == [("retried", 0)]


def test_the_retry_wait_of_a_schedule_comes_before_that_of_its_type(ledger: Ledger) -> None:
    task = ledger.task()
    assert isinstance(task.row, ScheduleRow)
    task.row = replace(task.row, policy=Policy(retry_wait=7))
    handler = Recorder(task)
    handler.fails = "perform"
    handler.retry_wait = 0
    handler.run()
    assert [entry[:2] for entry in ledger.entries] == [("retried", 7)]


def test_an_error_after_settling_changes_nothing_and_is_logged(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    handler = Recorder(ledger.task())
    handler.fails = "after"
    handler.run()
    assert ledger.entries == [("finished",)]
    [record] = caplog.records
    assert "after the run was finished" in record.getMessage()
    assert record.exc_info is not None


def test_a_run_that_was_told_to_stop_is_left_to_the_daemon(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    handler = Recorder(ledger.task())
    handler.fails = "perform"
    handler.task.stop_reason = ImmediateProcessStopError()
    handler.run()
    assert ledger.entries == []
    [record] = caplog.records
    assert (record.levelno, record.exc_info) == (logging.INFO, None)


def test_a_lost_lease_is_not_for_the_decider(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    ledger.preempted = True
    with pytest.raises(PreemptedError):
        Recorder(ledger.task()).run()
    assert caplog.records == []


@pytest.mark.parametrize("foreign", [PreemptedError("'other': lost"), OutcomeUnknownError("'other': unknown")])
def test_a_lost_lease_of_another_task_is_a_failure_like_any_other(ledger: Ledger, foreign: Exception) -> None:
    class Relaying(Base):
        def perform(self) -> None:
            raise foreign

    task = ledger.task()
    Relaying(task).run()
    assert ledger.entries == [("retried", None, repr(foreign))]
    assert task.outcome == "retried"


def test_a_lost_lease_of_another_task_hides_no_lost_lease_of_our_own(ledger: Ledger) -> None:
    class Relaying(Base):
        def perform(self) -> None:
            raise PreemptedError("'other': lost")

    ledger.preempted = True
    task = ledger.task()
    with pytest.raises(PreemptedError, match="the lease is lost"):
        Relaying(task).run()
    assert task.lease_lost


def test_what_is_no_exception_passes_through(ledger: Ledger) -> None:
    class Leaving(Base):
        def perform(self) -> None:
            raise SystemExit(3)

    with pytest.raises(SystemExit):
        Leaving(ledger.task()).run()
    assert ledger.entries == []


def test_a_handler_without_perform_says_so(ledger: Ledger) -> None:
    Base(ledger.task()).run()
    [(verb, _, error)] = ledger.entries
    assert verb == "retried"
    assert "Base must define perform() or run()" in error


class Patient(DefaultDecider):
    """Waits long after an error, and has one decision more than its base class."""

    def unexpected_error_raised(self, error: Exception) -> None:
        self.task.retry(3600, error=str(error))

    def quota_exceeded(self, limit: int) -> str:
        return f"{self.task.key} has more than {limit}"


class WithPatience(Recorder):
    decider = Patient
    fails = "perform"


def test_a_team_replaces_the_decider(ledger: Ledger) -> None:
    WithPatience(ledger.task()).run()
    assert ledger.entries == [("retried", 3600, "perform went wrong")]


def test_a_team_adds_decisions(ledger: Ledger) -> None:
    assert WithPatience(ledger.task()).decide("quota_exceeded", limit=3) == "key1 has more than 3"


@pytest.mark.parametrize("name", ["quota_exceded", "task", "decide", "handler", "_decisions", ""])
def test_an_unknown_decision_is_refused_by_name(name: str, ledger: Ledger) -> None:
    with pytest.raises(UndefinedDecisionError, match=f"Patient has no decision '{name}'"):
        WithPatience(ledger.task()).decide(name)


def test_a_misspelt_decision_brings_a_suggestion(ledger: Ledger) -> None:
    with pytest.raises(UndefinedDecisionError, match="did you mean 'quota_exceeded'"):
        WithPatience(ledger.task()).decide("quota_exceded")

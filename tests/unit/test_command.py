"""A task can be a program: psched runs it as the data say, tells it about its run, and ends all that it started."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from psched.application import ApplicationSpec, load
from psched.config import from_mapping
from psched.errors import ConfigError
from psched.handlers.command import Command, CommandDefaults, CommandHandler, command_options
from psched.supervisor.loaded_config import configured_application
from tests.unit.commands import in_shell, run, shell
from tests.unit.fake_task import Ledger

_PATIENCE = 10.0


# --- what is run


@pytest.mark.parametrize(("type_", "ours"), [("command", True), ("command.backup", True), ("commands", False)])
def test_it_takes_the_type_command_and_what_begins_with_it(type_: str, ours: bool) -> None:
    assert (Command.route(type_) is CommandHandler) is ours


def test_it_is_loaded_by_its_name() -> None:
    spec = ApplicationSpec(("Command",), require=("psched.handlers.command",))
    assert load(spec).routers == (Command,)


def test_arguments_are_passed_as_they_are(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    run(ledger, argv=["printf", "%s\\n", "a b", "$HOME", "*", "", "ü"])
    assert ledger.entries == [("finished",)]
    assert caplog.messages[-1].splitlines()[1:] == ["  | a b", "  | $HOME", "  | *", "  | ", "  | ü"]


def test_a_null_stands_for_what_need_not_be_there() -> None:
    told = {"argv": ["true"], "command": None, "cwd": None, "timeout": None}
    assert command_options(told) == command_options({"argv": ["true"]})


def test_a_shell_runs_what_asks_for_one(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    shell(ledger, "echo $((6 * 7)); echo error >&2")
    assert ledger.entries == [("finished",)]
    assert caplog.messages[-1].splitlines()[1:] == ["  | 42", "  | error"]


def test_it_learns_about_its_run(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    shell(ledger, "echo $PSCHED_KEY $PSCHED_TYPE $PSCHED_SCHEDULED_TIME $PSCHED_ATTEMPT $PSCHED_FENCE")
    assert caplog.messages[-1].splitlines()[1:] == ["  | key1 command 60 2 7"]


def test_without_fences_none_is_reported(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.store.shows_fence = False
    shell(ledger, 'test "${PSCHED_FENCE-unset}" = unset')
    assert ledger.entries == [("finished",)]


_SHOWN = "import os; print(sorted(os.environ.items()))"
_FACTS = [
    ("PSCHED_ATTEMPT", "2"),
    ("PSCHED_FENCE", "7"),
    ("PSCHED_KEY", "key1"),
    ("PSCHED_SCHEDULED_TIME", "60"),
    ("PSCHED_TYPE", "command"),
]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The daemon's environment: variables that each program needs, a password, and settings of psched.

    Return the variables that each program needs.
    """
    own = {"PATH": os.environ["PATH"], "HOME": "/root", "LANG": "C.UTF-8", "TZ": "Asia/Tokyo"}
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name, value in {**own, "DATABASE_PASSWORD": "secret", "PSCHED_ENV": "production"}.items():
        monkeypatch.setenv(name, value)
    return own


@pytest.mark.parametrize("rlimits", [{}, {"nofile": 100}])
def test_it_gets_a_few_variables_of_the_daemon_and_its_own(
    ledger: Ledger, environment: dict[str, str], rlimits: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    env = {"TZ": "UTC", "ADDED": "x=y", "PSCHED_KEY": "forged", "LC_CTYPE": "C.UTF-8"}
    run(ledger, argv=[sys.executable, "-c", _SHOWN], env=env, rlimits=rlimits)
    expected = {**environment, **env, **dict(_FACTS)}
    assert caplog.messages[-1].splitlines()[1:] == [f"  | {sorted(expected.items())}"]


def test_a_variable_that_the_daemon_lacks_is_not_made_up(
    ledger: Ledger, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TZ")
    shell(ledger, 'test "${TZ-unset}" = unset')
    assert ledger.entries == [("finished",)]


def test_it_inherits_all_variables_if_it_is_to(ledger: Ledger, environment: dict[str, str]) -> None:
    shell(ledger, 'test "$DATABASE_PASSWORD $PSCHED_ENV $PSCHED_KEY" = "secret production key1"', inherit_env=True)
    assert ledger.entries == [("finished",)]


def test_it_runs_in_the_given_folder(ledger: Ledger, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shell(ledger, "pwd", cwd=str(tmp_path))
    assert caplog.messages[-1].splitlines()[1:] == [f"  | {tmp_path}"]


# --- its limits


def test_its_limits_are_set_before_it_begins(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    shell(ledger, "ulimit -Sn; ulimit -Hn; ulimit -c", rlimits={"nofile": 123, "core": 0})
    assert caplog.messages[-1].splitlines()[1:] == ["  | 123", "  | 123", "  | 0"]


def test_a_limited_program_keeps_its_arguments_folder_group_and_status(
    ledger: Ledger, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check = f"import os, sys; assert os.getpgid(0) != {os.getpgid(0)}; print(sys.argv[1:], os.getcwd()); sys.exit(7)"
    argv = [sys.executable, "-c", check, "a b", "", "-c", "ü"]
    run(ledger, argv=argv, rlimits={"nofile": 50}, cwd=str(tmp_path), ok_exit_codes=[7])
    assert ledger.entries == [("finished",)]
    assert caplog.messages[-1].splitlines()[1:] == [f"  | ['a b', '', '-c', 'ü'] {tmp_path}"]


def test_a_program_that_uses_up_its_processor_time_is_told_so(ledger: Ledger) -> None:
    shell(ledger, "while :; do :; done", rlimits={"cpu": 1})
    [(verb, _, error)] = ledger.entries
    assert verb == "retried"
    assert error.startswith("was ended by SIGXCPU after ")


@pytest.mark.parametrize(
    ("argv", "rlimits", "reason"),
    [
        (["/nowhere/at/all"], {"core": 0}, "cannot run '/nowhere/at/all' with its rlimits: [Errno 2]"),
        (["true"], {"nofile": 2**40}, "cannot run 'true' with its rlimits: "),
    ],
)
def test_a_limited_program_that_cannot_be_started_is_an_error(
    argv: list[str], rlimits: dict[str, int], reason: str, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    run(ledger, argv=argv, rlimits=rlimits)
    [(_, _, error)] = ledger.entries
    assert error.startswith("ended with exit status 127 after ")
    assert reason in caplog.messages[-1]


# --- what the configuration says of all programs


def configured(options: dict[str, Any]) -> type[CommandHandler]:
    """Return the handler class of commands with these options, as a configuration makes it."""
    settings = from_mapping(
        {"type": "rdb", "url": "sqlite:///psched.db", "app": [{"psched.handlers.command:Command": options}]}
    )
    assert "secret" not in repr(settings)
    handler = load(configured_application(settings)).handler(Ledger().task("command.backup"))
    assert isinstance(handler, CommandHandler)
    return type(handler)


def test_the_configuration_gives_all_programs_options_and_a_task_its_own(ledger: Ledger) -> None:
    handler = configured(
        {
            "timeout": "1m",
            "inherit_env": True,
            "keep_output": True,
            "env": {"PASSWORD": "secret", "B": "b"},
            "rlimits": {"core": 0, "nofile": 9},
        }
    )
    data = {"argv": ["true"], "env": {"B": "own"}, "rlimits": {"nofile": 10}}
    options = command_options(data, handler.defaults)
    assert (options.timeout, options.inherit_env, options.keep_output) == (60, True, True)
    assert (options.env, options.rlimits) == ({"PASSWORD": "secret", "B": "own"}, {"core": 0, "nofile": 10})
    own = {**data, "timeout": 5, "inherit_env": False, "keep_output": False}
    options = command_options(own, handler.defaults)
    assert (options.timeout, options.inherit_env, options.keep_output) == (5, False, False)
    assert command_options({**data, "timeout": None}, handler.defaults).timeout is None
    assert CommandHandler.defaults == CommandDefaults()


def test_a_configured_timeout_ends_a_program(ledger: Ledger) -> None:
    handler = configured({"timeout": 1})
    handler(ledger.task("command", in_shell("sleep 60"))).run()
    assert ledger.entries == [("retried", None, "was ended after its timeout of 1 s")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timout": 3}, "psched.handlers.command:Command: unknown key 'timout' (did you mean 'timeout'?)"),
        ({"timeout": 0}, "timeout: expected seconds or a duration (90s, 5m, 2h) > 0"),
        ({"cwd": "/"}, "unknown key 'cwd'"),
        ({"rlimits": {"nofiles": 1}}, "rlimits: unknown limit 'nofiles' (did you mean 'nofile'?); expected one of "),
        ({"rlimits": {"nofile": "many"}}, "rlimits: 'nofile': expected a whole number"),
        ({"keep_output": "yes"}, "keep_output: expected true or false"),
        ({"env": {"A": 5}}, "env: 'A': expected text"),
    ],
)
def test_an_unusable_option_of_the_configuration_is_refused_by_its_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as found:
        configured(options)
    assert message in str(found.value)
    assert "\n" not in str(found.value)


@pytest.fixture
def something_to_read() -> Iterator[None]:
    """Give the test process a standard input that contains a line."""
    reader, writer = os.pipe()
    os.write(writer, b"not for programs\n")
    os.close(writer)
    before = os.dup(0)
    os.dup2(reader, 0)
    os.close(reader)
    yield
    os.dup2(before, 0)
    os.close(before)


@pytest.mark.usefixtures("something_to_read")
def test_it_reads_nothing_and_inherits_no_descriptor(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    with Path(os.devnull).open("w") as opened:
        os.set_inheritable(opened.fileno(), True)
        run(ledger, argv=[sys.executable, "-c", "import os, sys; print(repr(sys.stdin.read()), os.listdir('/dev/fd'))"])
    assert ledger.entries == [("finished",)]
    assert caplog.messages[-1].splitlines()[1:] == ["  | '' ['0', '1', '2', '3']"]


def test_it_has_a_process_group_of_its_own(ledger: Ledger) -> None:
    check = f"import os; assert os.getpgid(0) != {os.getpgid(0)}"
    run(ledger, argv=[sys.executable, "-c", check])
    assert ledger.entries == [("finished",)]


# --- how it ends


def test_another_exit_status_is_an_error_and_the_last_lines_are_logged(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    shell(ledger, "echo first; echo disk full; exit 3")
    [(verb, wait, error)] = ledger.entries
    assert (verb, wait) == ("retried", None)
    assert re.fullmatch(r"ended with exit status 3 after [\d.]+ s", error)
    assert "key=key1 type=command ended with exit status 3" in caplog.messages[-1]
    assert caplog.messages[-1].splitlines()[1:] == ["  | first", "  | disk full"]
    assert [record.exc_info for record in caplog.records] == [None]


@pytest.mark.parametrize(("status", "verb"), [(0, "retried"), (3, "finished"), (4, "finished")])
def test_what_counts_as_success_may_be_chosen(status: int, verb: str, ledger: Ledger) -> None:
    shell(ledger, f"exit {status}", ok_exit_codes=[3, 4])
    assert [entry[0] for entry in ledger.entries] == [verb]


def test_a_program_ended_by_a_signal_is_an_error(ledger: Ledger) -> None:
    shell(ledger, "kill -9 $$")
    [(verb, _, error)] = ledger.entries
    assert verb == "retried"
    assert error.startswith("was ended by SIGKILL after")


def test_a_timeout_ends_it_and_is_an_error(ledger: Ledger) -> None:
    shell(ledger, "echo begun; sleep 60", timeout=1)
    assert ledger.entries == [("retried", None, "was ended after its timeout of 1 s")]


def test_it_may_tidy_up_at_its_timeout(ledger: Ledger, tmp_path: Path) -> None:
    shell(ledger, "trap 'echo tidy >tidied; exit 0' TERM; sleep 60 & wait", timeout=1, cwd=str(tmp_path))
    assert (tmp_path / "tidied").exists()
    assert [entry[0] for entry in ledger.entries] == ["retried"]


# --- its output


def test_a_flood_of_output_neither_blocks_it_nor_fills_the_memory(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    before = psutil.Process().memory_info().rss
    shell(ledger, "head -c 200000000 /dev/zero; echo; seq 1000000")
    assert psutil.Process().memory_info().rss - before < 50_000_000
    assert ledger.entries == [("finished",)]
    assert caplog.messages[-1].splitlines()[1:] == [f"  | {number}" for number in range(999_961, 1_000_001)]


def test_one_endless_line_is_cut(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    shell(ledger, "head -c 1000000 /dev/zero | tr '\\0' x")
    assert caplog.messages[-1].splitlines()[1:] == ["  | " + "x" * 8192]


def test_output_that_is_no_text_is_replaced(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    shell(ledger, r"printf 'a\377b\tc\033[31md\n'")
    assert caplog.messages[-1].splitlines()[1:] == ["  | a\ufffdb\tc\ufffd[31md"]


def test_output_cannot_forge_a_log_line(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    shell(ledger, r"printf '\nkey=other finished\r\nkey=x\013key=y\n'")
    assert all(line.startswith("  |") for line in caplog.messages[-1].splitlines()[1:])


def test_a_program_may_close_its_output_and_go_on(ledger: Ledger) -> None:
    before = time.process_time()
    shell(ledger, "exec >/dev/null 2>&1; sleep 0.6; exit 5")
    assert time.process_time() - before < 0.3, "it was waited for with a busy loop"
    [(_, _, error)] = ledger.entries
    assert error.startswith("ended with exit status 5")


@pytest.mark.parametrize(("status", "is_failure"), [(0, False), (3, True)])
def test_output_is_kept_with_its_end_before_the_run_is_settled(status: int, is_failure: bool, ledger: Ledger) -> None:
    shell(ledger, f"seq 100; exit {status}", keep_output=True)
    (_, kept), (verb, *_) = ledger.entries
    assert kept.text.splitlines() == [str(number) for number in range(1, 101)]
    assert kept.result.startswith(f"ended with exit status {status} after ")
    assert (kept.failed, verb) == (is_failure, "retried" if is_failure else "finished")


def test_kept_output_is_the_last_8_kilobytes(ledger: Ledger) -> None:
    shell(ledger, "head -c 100000 /dev/zero | tr '\\0' x; echo end", keep_output=True)
    (_, kept), _ = ledger.entries
    assert (len(kept.text), kept.text[-4:]) == (8191, "xend")


def test_the_last_line_is_in_the_error_only_if_output_is_kept(ledger: Ledger) -> None:
    shell(ledger, "echo token=secret; exit 3", keep_output=True)
    _, (_, _, error) = ledger.entries
    assert error.endswith(" s: token=secret")
    ledger.entries.clear()
    shell(ledger, "echo 'Traceback (most recent call last):'; echo 'ValueError: secret'; exit 3")
    [(_, _, error)] = ledger.entries
    assert "secret" not in error


def test_output_that_cannot_be_kept_is_logged_and_the_run_is_settled(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError("the database is away")

    monkeypatch.setattr(ledger, "keep_output", fail)
    shell(ledger, "true", keep_output=True)
    assert ledger.entries == [("finished",)]
    assert "key=key1 the output of this run was not kept: the database is away" in caplog.messages


def test_a_program_whose_output_cannot_be_kept_is_refused_before_it_runs(
    ledger: Ledger, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger.output_problem = "queue tasks keep none"
    shell(ledger, "touch begun", keep_output=True, cwd=str(tmp_path))
    assert ledger.entries == [("retried", None, "keep_output: queue tasks keep none")]
    assert not (tmp_path / "begun").exists()


# --- what cannot be run


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, 'give "argv", a list of strings, or "shell": true with "command"'),
        ({"command": "ls"}, 'give "argv", a list of strings'),
        ({"shell": True, "argv": ["ls"]}, 'with "shell": true give "command", not "argv"'),
        ({"shell": 1, "command": "ls"}, "shell: expected true or false"),
        ({"argv": "ls -l"}, "argv: expected a list that is not empty"),
        ({"argv": []}, "argv: expected a list that is not empty"),
        ({"argv": [""]}, 'the first of "argv" must name the program, and is empty'),
        ({"argv": ["ls", 1]}, "argv: item 1: expected text"),
        ({"argv": ["ls", "a\0b"]}, "argv: item 1: a NUL character cannot be passed to a program"),
        ({"argv": ["ls"], "timout": 3}, "unknown key 'timout' (did you mean 'timeout'?)"),
        ({"argv": ["ls"], "timeout": 0}, "timeout: expected seconds or a duration (90s, 5m, 2h) > 0"),
        ({"shell": True, "command": ""}, "command: expected a command, not an empty string"),
        ({"argv": ["ls"], "env": ["A"]}, "env: expected an object"),
        ({"argv": ["ls"], "base": "/"}, "unknown key 'base'"),
        ({"argv": ["ls"], "timeout": True}, "timeout: expected seconds or a duration (90s, 5m, 2h) > 0"),
        ({"argv": ["ls"], "cwd": "var"}, "cwd: expected an absolute path, got 'var'"),
        ({"argv": ["ls"], "rlimits": {"nofile": -1}}, "rlimits: 'nofile': expected a whole number from 0"),
        ({"argv": ["ls"], "inherit_env": "yes"}, "inherit_env: expected true or false"),
        ({"argv": ["ls"], "keep_output": 1}, "keep_output: expected true or false"),
        ({"argv": ["ls"], "env": {"a\nb": 1}}, "env: 'a\\nb': expected text"),
        ({"argv": ["ls"], "env": {"A=B": "1"}}, "environment variable must not be empty or contain '='"),
        ({"argv": ["ls"], "ok_exit_codes": [256]}, "ok_exit_codes: item 0: expected a number from 0 to 255, got 256"),
        ({"argv": [1], "cwd": 2}, "argv: item 0: expected text; cwd: expected text"),
        ({"argv": ["/nowhere/at/all"]}, "cannot run '/nowhere/at/all': No such file or directory"),
        ({"argv": ["psched-nowhere-in-path"]}, "cannot run 'psched-nowhere-in-path': No such file or directory"),
        ({"argv": ["/etc/passwd"]}, "cannot run '/etc/passwd': Permission denied"),
        ({"argv": ["ls"], "cwd": "/nowhere"}, "cannot run '/nowhere': No such file or directory"),
        ({"argv": ["ls", "x" * 3_000_000]}, "cannot run 'ls': Argument list too long"),
        ({"argv": ["ls", "\ud800"]}, "cannot run 'ls': 'utf-8' codec can't encode"),
    ],
)
def test_data_that_cannot_be_used_is_one_clear_error_and_retried(
    data: dict[str, Any], message: str, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    run(ledger, **data)
    [(verb, _, error)] = ledger.entries
    assert verb == "retried"
    assert message in error
    [record] = caplog.records
    assert message in record.getMessage()
    assert record.exc_info is None
    assert "\n" not in record.getMessage()

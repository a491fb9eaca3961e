"""manage.py psched …: psched's commands with Django's settings."""

from __future__ import annotations

from collections.abc import Sequence

from psched.cli.errors import run_command
from psched.contrib.django.configuration import chosen
from psched.contrib.django.management.click_command import ClickCommand, replace_process


class Command(ClickCommand):
    help = "psched's commands: run, list, add, doctor, queue … (manage.py psched --help)"

    def run(self, words: Sequence[str]) -> int:
        """Run a command of psched: `run` and `queue run` in a new process, all others in this process.

        The new process imports none of the user's modules, because its children must import them themselves.
        """
        from psched.cli.main import commands_with  # noqa: PLC0415 – only where it is used

        commands = commands_with(run=lambda: replace_process("psched.contrib.django.run_psched", words))
        return run_command(commands, words, chosen())

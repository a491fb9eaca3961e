"""manage.py pschedd start|stop|status|…: the daemon in the background, with Django's settings."""

from __future__ import annotations

from collections.abc import Sequence

from psched.contrib.django.management.click_command import ClickCommand, replace_process


class Command(ClickCommand):
    help = "psched's daemon: start, stop, restart, reload, upgrade, status … (manage.py pschedd --help)"

    def run(self, words: Sequence[str]) -> int:
        """Run pschedd in a new process."""
        replace_process("psched.contrib.django.run_pschedd", words)

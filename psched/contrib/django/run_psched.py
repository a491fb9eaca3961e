"""`python -m psched.contrib.django.run_psched …`: psched, in a process that does not set up Django itself."""

import sys

from psched.cli.errors import run_command
from psched.cli.main import psched
from psched.contrib.django.configuration import chosen_of_daemon

if __name__ == "__main__":
    sys.exit(run_command(psched, chosen=chosen_of_daemon()))

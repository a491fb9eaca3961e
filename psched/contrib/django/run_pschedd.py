"""`python -m psched.contrib.django.run_pschedd …`: pschedd with Django's settings. A binary upgrade also runs this."""

import sys

from psched.cli.errors import run_command
from psched.cli.pschedd import pschedd
from psched.contrib.django.configuration import chosen_of_daemon

if __name__ == "__main__":
    sys.exit(run_command(pschedd, chosen=chosen_of_daemon()))

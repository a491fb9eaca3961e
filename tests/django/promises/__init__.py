"""An app that is added to the sample project. Django's own test runner runs its tests."""

import os
import sys
from pathlib import Path

with (Path(__file__).parents[1] / "imports").open("a") as file:
    print(os.getpid(), *sys.argv[1:], file=file)

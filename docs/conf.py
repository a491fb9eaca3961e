"""How Sphinx builds the site; scripts/docs runs it."""

from __future__ import annotations

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

_HERE = Path(__file__).parent
sys.path.insert(0, str(_HERE / "_extensions"))

project = "psched"
author = "The psched authors"
version = release = installed_version("psched")

extensions = ["myst_parser", "sphinx_click", "psched_reference"]
myst_heading_anchors = 6
suppress_warnings = ["myst.header"]  # api.md: a docstring may begin a level deeper
smartquotes = False  # --json is two hyphens
exclude_patterns = ["_extensions"]

html_theme = "furo"
html_title = "psched"
html_copy_source = False
html_show_sphinx = False

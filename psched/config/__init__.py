"""The configuration: an environment of a YAML file, or a dict, made into frozen settings. In the master and in clients.

`document` reads the file, `variables` expands `${VAR}`, `checks` tests single values, `settings` holds the result and
its defaults, `build` puts it together and says what is wrong, one line per fault. Passwords are never shown.
"""

from psched.config.loader import Reader, coerce, default_environment, from_mapping, load
from psched.config.settings import Section, Settings
from psched.config.urls import masked_url

__all__ = ["Reader", "Section", "Settings", "coerce", "default_environment", "from_mapping", "load", "masked_url"]

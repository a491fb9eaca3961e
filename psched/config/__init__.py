"""The configuration: one environment of a YAML file, or a dict, as frozen settings.

`yaml_file` reads the file, `variable_expansion` replaces `${NAME}`, `validators` check single values, `settings`
defines the keys and their defaults, and `loader` combines all this and reports all errors, one on each line. Errors
show neither passwords in URLs nor the value of a `${NAME}`.
"""

from psched.config.database_urls import masked_url
from psched.config.loader import coerce, default_environment, default_file, default_table, from_mapping, load
from psched.config.settings import Section, SectionName, Settings
from psched.config.telemetry_listeners import attach_listeners, preload_listeners

__all__ = [
    "Section",
    "SectionName",
    "Settings",
    "attach_listeners",
    "coerce",
    "default_environment",
    "default_file",
    "default_table",
    "from_mapping",
    "load",
    "masked_url",
    "preload_listeners",
]

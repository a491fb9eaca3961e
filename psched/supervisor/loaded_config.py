"""The configuration with which the master forks its children: the settings, and the application to load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from psched.application import ApplicationSpec
from psched.config import Settings
from psched.store import holder_name
from psched.supervisor.preload_libraries import preload


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    settings: Settings
    application: ApplicationSpec
    claimer: str = field(default_factory=partial(holder_name, "alerts"))
    """The name for claims of alerts and events. Only one child at a time claims; the next child has the same name."""

    @classmethod
    def load(cls, load_settings: Callable[[], Settings], application: ApplicationSpec | None) -> LoadedConfig:
        """Load the settings, and import the modules that all children need.

        `application`: None for the configured application.
        """
        settings = load_settings()
        preload(settings)
        return cls(settings, configured_application(settings) if application is None else application)

    @property
    def slots(self) -> int:
        """How many children run tasks.

        With `processor_type: thread` there is one child, with as many threads as `processors` says.
        """
        return 1 if self.settings.processor_type == "thread" else self.settings.processors

    @property
    def handler_threads(self) -> int:
        """How many handler threads one child has."""
        return self.settings.processors if self.settings.processor_type == "thread" else 1


def configured_application(settings: Settings) -> ApplicationSpec:
    """Return the application of all sections, with a spec for each section if their applications differ."""

    def of(key: str) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(name for section in settings.sections for name in getattr(section, key)))

    own = tuple(
        (name, ApplicationSpec(section.app, section.include, section.require))
        for name, section in settings.named_sections
    )
    same = len({spec for _, spec in own}) <= 1
    return ApplicationSpec(of("app"), of("include"), of("require"), () if same else own)

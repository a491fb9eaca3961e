"""What the master runs at present: settings and application of one generation. Made at each restart. In the master."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from psched.application import ApplicationSpec
from psched.config import Settings
from psched.daemon.child_handle import Limits


@dataclass(frozen=True, slots=True)
class Plan:
    """One configuration and what it makes of the master."""

    settings: Settings
    application: ApplicationSpec

    @property
    def slots(self) -> int:
        """How many children there are: with `processor_type: thread` one, which has the processors as threads."""
        return 1 if self.settings.processor_type == "thread" else self.settings.processors

    @property
    def cells(self) -> int:
        """How many handler threads each child has."""
        return self.settings.processors if self.settings.processor_type == "thread" else 1

    @property
    def sections(self) -> tuple[str, ...]:
        """The names of the sections that are served."""
        return tuple(name for name, _ in self.settings.named_sections)

    @property
    def limits(self) -> Limits:
        """What the children's lives are bounded by."""
        settings = self.settings
        return Limits(settings.child_heartbeat_limit, settings.child_kill_interval, settings.child_graceful_kill_limit)


def planner(load_config: Callable[[], Settings], application: ApplicationSpec | None) -> Callable[[], Plan]:
    """Return what makes a plan of the configuration as it is then. `application` None: as configured."""

    def make() -> Plan:
        settings = load_config()
        return Plan(settings, configured_application(settings) if application is None else application)

    return make


def configured_application(settings: Settings) -> ApplicationSpec:
    """Return what the sections name: one application for all of them, or one for each where they differ."""

    def of(key: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for section in settings.sections for name in getattr(section, key)))

    named = {"schedules": settings.schedules, "queue": settings.queue}
    own = tuple(
        (name, ApplicationSpec(section.app, section.include, section.require))
        for name, section in named.items()
        if section is not None
    )
    same = len({spec for _, spec in own}) <= 1
    return ApplicationSpec(of("app"), of("include"), of("require"), () if same else own)

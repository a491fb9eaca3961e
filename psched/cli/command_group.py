"""A group of commands whose options may stand before the command, as in `psched -d 5 add …` (as in the originals)."""

from __future__ import annotations

from collections.abc import Iterator

import click


class CommandGroup(click.Group):
    """Passes options before the command on to the command, unless they are the group's own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = dict(_options(self))
        known = dict(options_below(self)) | own
        leading: list[str] = []
        passed_on: list[str] = []
        rest = list(args)
        while rest and rest[0].startswith("-") and rest[0] != "--":
            word = rest.pop(0)
            spelling = _spelling(word)
            name = spelling if ctx.token_normalize_func is None else ctx.token_normalize_func(spelling)
            option = known.get(name)
            words = leading if option is None or name in own else passed_on
            words.append(word)
            if option is not None and takes_value(option) and word == spelling and rest:
                words.append(rest.pop(0))
        return super().parse_args(ctx, [*leading, *rest[:1], *passed_on, *rest[1:]])


def options_below(group: click.Group) -> Iterator[tuple[str, click.Option]]:
    """Yield the options of all commands of the group, and of its groups, by each of their spellings."""
    for command in group.commands.values():
        yield from _options(command)
        if isinstance(command, click.Group):
            yield from options_below(command)


def takes_value(option: click.Option) -> bool:
    """Return whether the word after the option is its value."""
    return not option.is_flag and not option.count


def _options(command: click.Command) -> Iterator[tuple[str, click.Option]]:
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield from ((name, parameter) for name in parameter.opts)


def _spelling(word: str) -> str:
    """Return the option in a word such as `--delay=5` or `-d5`."""
    return word.partition("=")[0] if word.startswith("--") else word[:2]

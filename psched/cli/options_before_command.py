"""A group of commands whose options may precede the command, as in `psched -d 5 add …`.

The Ruby programs allow this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import click

Options = dict[str, click.Option]
"""Each spelling of each option, with the option."""


class CommandGroup(click.Group):
    """A group that gives its command the options before the command, except the group's own options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = dict(_options(self))
        normalized = _same if ctx.token_normalize_func is None else ctx.token_normalize_func
        for place, word in enumerate(args):
            command = self.commands.get(normalized(word))
            found = None if command is None else _split(args[:place], own, dict(options_of(command)), normalized)
            if found is not None:
                leading, passed_on = found
                return super().parse_args(ctx, [*leading, word, *passed_on, *args[place + 1 :]])
        return super().parse_args(ctx, args)


def _split(
    words: Sequence[str], own: Options, others: Options, normalized: Callable[[str], str]
) -> tuple[list[str], list[str]] | None:
    """Split the words into the group's own options and the `others`, each with its value.

    Return None if a word belongs to no option.
    """
    leading: list[str] = []
    passed_on: list[str] = []
    rest = iter(words)
    for word in rest:
        spelling = word.partition("=")[0] if word.startswith("--") else word[:2]  # the spelling in --delay=5 or -d5
        name = normalized(spelling)
        option = own.get(name, others.get(name))
        if option is None:
            return None
        target = leading if name in own else passed_on
        target.append(word)
        if takes_value(option) and word == spelling:
            value = next(rest, None)
            if value is None:
                return None
            target.append(value)
    return leading, passed_on


def takes_value(option: click.Option) -> bool:
    """Return whether the word after the option is the option's value."""
    return not option.is_flag and not option.count


def options_of(command: click.Command) -> Iterator[tuple[str, click.Option]]:
    """Yield each spelling of each option of the command and of its subcommands, with the option."""
    yield from _options(command)
    if isinstance(command, click.Group):
        for below in command.commands.values():
            yield from options_of(below)


def _options(command: click.Command) -> Iterator[tuple[str, click.Option]]:
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield from ((name, parameter) for name in parameter.opts)


def _same(word: str) -> str:
    return word

"""Reads YAML files, and one environment of a configuration file. Refuses duplicate keys."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from psched.error_messages import did_you_mean
from psched.errors import ConfigError

_MAX_SHOWN = 10  # the maximum number of environments that a message names
_MAX_NAME_LENGTH = 40
_MOST_NESTED = 400  # Python's recursion limit allows a few more levels
_TEXT = "tag:yaml.org,2002:str"
_INTEGER = "tag:yaml.org,2002:int"
_LIST = "tag:yaml.org,2002:seq"
_MAPPING = "tag:yaml.org,2002:map"
_TOO_DEEP = "not usable: nested too deeply"
_NO_TEXT = "not valid YAML: expected UTF-8 text without control characters"
NOT_PERMITTED = "Permission denied; run the command as root or as the service's user (runuser -u USER -- …)"


if TYPE_CHECKING:
    _Constructor = yaml.SafeLoader
else:
    _Constructor = object


class _UniqueKeys(_Constructor):
    """Makes a SafeLoader refuse duplicate keys, as YAML requires. PyYAML itself would use the last of equal keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                problem = f"duplicate key {key.value!r}"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


class _UniqueKeyLoader(_UniqueKeys, yaml.SafeLoader):
    pass


class _QuickLoader(_UniqueKeys, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """With libyaml, reads a file several times as fast as PyYAML alone. A date is read as text, as in JSON."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as PyYAML declares it
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    _depth = 0

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._tags: dict[str | None, str] = {}
        self._made: dict[yaml.Node, Any] = {}

    def descend_resolver(self, parent: object, index: object) -> None:
        """Count the levels of nodes. PyYAML calls this before each node. libyaml would crash on too many levels."""
        self._depth += 1
        if self._depth > _MOST_NESTED:
            raise RecursionError

    def ascend_resolver(self) -> None:
        self._depth -= 1

    def resolve(self, kind: type[yaml.Node], value: str | None, implicit: tuple[bool, bool]) -> str:
        """Find the tag of a node as PyYAML does, but only once for equal texts without quotes."""
        is_plain = kind is yaml.ScalarNode and value is not None and implicit[0]
        tag = self._tags.get(value) if is_plain else None
        if tag is None:
            tag = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
            if is_plain:
                self._tags[value] = tag
        return tag

    def construct_document(self, node: yaml.Node) -> Any:
        """Make the same value as PyYAML, but mappings, lists, texts and whole numbers three times as fast."""
        self._made = {}
        return self._make(node)

    def _make(self, node: yaml.Node) -> Any:
        if isinstance(node, yaml.ScalarNode):
            if node.tag == _TEXT:
                return node.value
            if node.tag == _INTEGER and node.value.isdecimal() and node.value[0] != "0":
                return int(node.value)
        elif node in self._made:  # an alias
            return self._made[node]
        elif node.tag == _LIST and isinstance(node, yaml.SequenceNode):
            items = self._made[node] = []
            items.extend(map(self._make, node.value))
            return items
        elif node.tag == _MAPPING and isinstance(node, yaml.MappingNode) and _has_plain_keys(node):
            mapping = self._made[node] = {}
            for key, value in node.value:
                mapping[key.value] = self._make(value)
            return mapping
        return self.construct_object(node, deep=True)


def _has_plain_keys(node: yaml.MappingNode) -> bool:
    """Return whether all keys of a mapping are different texts."""
    keys = {key.value for key, _ in node.value if key.tag == _TEXT and isinstance(key, yaml.ScalarNode)}
    return len(keys) == len(node.value)


class Document(NamedTuple):
    """The content of a YAML file, and its nodes with their lines."""

    content: Any
    root: yaml.Node | None

    def line(self, *path: str) -> int | None:
        """Return the line of the key at `path`.

        If the key does not exist, return the line of its nearest existing parent.
        """
        node, line = self.root, None
        for name in path:
            pairs = node.value if isinstance(node, yaml.MappingNode) else ()
            found = next(((key, value) for key, value in pairs if getattr(key, "value", None) == name), None)
            if found is None:
                return line
            line, node = found[0].start_mark.line + 1, found[1]
        return line


def read_environment(path: Path, environment: str) -> dict[str, Any]:
    """Return the mapping of `environment` in the file. Raises ConfigError that names the file, line or environment."""
    text = _read(path, " with -c or PSCHED_CONFIG", " (etc/psched.example.yml is an example)")
    document = _load(text, str(path), _UniqueKeyLoader).content
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: expected one mapping per environment, like `development:`; the file has none")
    environments = {str(name): content for name, content in document.items()}
    if environment not in environments:
        raise ConfigError(f"{path}: {_missing(environment, environments)}")
    content = environments[environment]
    if not isinstance(content, dict):
        found = "nothing" if content is None else type(content).__name__
        raise ConfigError(f"{path}:{environment}: expected a mapping of settings, got {found}")
    return content


def _missing(environment: str, environments: dict[str, Any]) -> str:
    if "type" in environments or "url" in environments:
        return f"the settings are at the top level; indent them under `{environment}:`"
    names = [name for name in environments if name.replace("-", "_").isidentifier()]  # other keys may be secrets
    shown = [
        name if len(name) <= _MAX_NAME_LENGTH else f"{name[: _MAX_NAME_LENGTH - 1]}…" for name in names[:_MAX_SHOWN]
    ]
    more = len(environments) - len(shown)
    found = f"only {', '.join(shown)}" + (f" and {more} more" if more else "")
    if not names:
        found = f"and none of the file's {more} keys looks like an environment" if more else "the file has none"
    hint = did_you_mean(environment, [name for name in names if len(name) <= _MAX_NAME_LENGTH])
    return f"there is no environment {environment!r}, {found}{hint} (set -e or $PSCHED_ENV)"


def read_document(path: Path) -> Document:
    """Return the content of a YAML file, with dates as text. Raises ConfigError that names the file and line."""
    return parse_document(_read(path), str(path))


def parse_document(text: str, name: str) -> Document:
    """Return the content of a YAML text, with dates as text. Raises ConfigError that names `name` and the line."""
    return _load(text, name, _QuickLoader)


def _read(path: Path, how: str = "", example: str = "") -> str:
    """Return the text of a file. Raises ConfigError.

    For the error message: `how` names the option for another file, and `example` names an example file.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file; name one{how}{example}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a folder; name a YAML file{how}") from None
    except PermissionError:
        raise ConfigError(f"{path}: cannot be read: {NOT_PERMITTED}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: {_NO_TEXT}") from None


def _remedy(text: str, error: yaml.MarkedYAMLError) -> str | None:
    """Return a message with the remedy for a character that cannot begin a value; None for other errors."""
    mark, problem = error.problem_mark, error.problem or ""
    if mark is None or not (error.context == "while scanning an alias" or "start any token" in problem):
        return None
    found = "*" if error.context == "while scanning an alias" else text.splitlines()[mark.line][mark.column]
    return "a tab; indent with spaces" if found == "\t" else f"a value that begins with {found} needs quotes"


def _load(text: str, name: str, kind: type[Any]) -> Document:
    try:
        loader = kind(text)
        try:
            root = loader.get_single_node()
            return Document(None if root is None else loader.construct_document(root), root)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        problem = error.problem or error.context or ""
        if "nesting depth" in problem:  # PyYAML 6.0.4 and later; before, a RecursionError
            raise ConfigError(f"{name}: {_TOO_DEEP}") from None
        raise ConfigError(f"{name}{line}: not valid YAML: {_remedy(text, error) or problem}") from None
    except yaml.YAMLError:
        raise ConfigError(f"{name}: {_NO_TEXT}") from None
    except RecursionError:
        raise ConfigError(f"{name}: {_TOO_DEEP}") from None

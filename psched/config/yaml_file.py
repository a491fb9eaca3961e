"""Reads one environment of a YAML file; refuses duplicate keys."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from psched.error_text import did_you_mean
from psched.errors import ConfigError

_MAX_SHOWN = 10  # environments that a message names
_MAX_NAME_LENGTH = 40
NOT_PERMITTED = "Permission denied; run the command as root or as the service's user (runuser -u USER -- …)"


class _UniqueKeyLoader(yaml.SafeLoader):
    """A SafeLoader that refuses duplicate keys, as YAML demands; PyYAML uses the last one."""

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


def read_environment(path: Path, environment: str) -> dict[str, Any]:
    """Return the mapping of `environment` in the file. Raises ConfigError naming file, line or environment."""
    document = _parse(path)
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
        found = f"and none of the file's {more} keys looks like one" if more else "the file has none"
    hint = did_you_mean(environment, [name for name in names if len(name) <= _MAX_NAME_LENGTH])
    return f"there is no environment {environment!r}, {found}{hint} (set -e or $PSCHED_ENV)"


def _parse(path: Path) -> Any:
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _UniqueKeyLoader)  # noqa: S506 - a SafeLoader
    except FileNotFoundError:
        hint = "name one with -c or PSCHED_CONFIG, etc/psched.example.yml is an example"
        raise ConfigError(f"{path}: there is no such file; {hint}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a folder; name a YAML file with -c or PSCHED_CONFIG") from None
    except PermissionError:
        raise ConfigError(f"{path}: cannot be read: {NOT_PERMITTED}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        problem = error.problem or error.context or ""
        problem = "a tab; indent with spaces" if r"'\t'" in problem else problem
        raise ConfigError(f"{path}{line}: not valid YAML: {problem}") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise ConfigError(f"{path}: not valid YAML: expected UTF-8 text without control characters") from None
    except RecursionError:
        raise ConfigError(f"{path}: not usable: nested too deeply") from None

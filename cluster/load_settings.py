"""Reads settings from flags, the environment and a YAML file. The only place that looks at any of them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from cluster.settings import ServeSettings, environment_of
from cluster.settings_checks import flag_of
from protocol.errors import ConfigError

_FIELDS = {field.name: field for field in fields(ServeSettings)}
_BOOLEANS = {"1": True, "true": True, "0": False, "false": False}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """One flag per setting; unset flags are None, so that the environment and the file can speak."""
    parser.add_argument("model_argument", nargs="?", metavar="MODEL", help="the same as --model")
    parser.add_argument("--config", metavar="FILE", help="YAML file with the same names, e.g. `prefill: 2`")
    for field in fields(ServeSettings):
        choices = ", ".join(filter(None, field.metadata["choices"]))
        default = "" if field.default in ("", 0) else f"default {field.default}"
        hints = "; ".join(filter(None, (choices, default)))
        text = f"{field.metadata['help']}{f' ({hints})' if hints else ''} [{environment_of(field.name)}]"
        if isinstance(field.default, bool):
            flag = f"--{flag_of(field.name)}"
            parser.add_argument(flag, dest=field.name, action=argparse.BooleanOptionalAction, default=None, help=text)
        else:
            parser.add_argument(
                f"--{flag_of(field.name)}", dest=field.name, metavar=field.metadata["metavar"], help=text
            )


def load_settings(arguments: argparse.Namespace, environment: Mapping[str, str]) -> ServeSettings:
    """The settings that apply. Raises `ConfigError` naming the flag, variable or key that is wrong."""
    config_file = arguments.config or environment.get(environment_of("config"))
    values = _from_file(Path(config_file)) if config_file else {}
    for name in _FIELDS:
        if environment_of(name) in environment:
            values[name] = _convert(name, environment[environment_of(name)], environment_of(name))
    for name in _FIELDS:
        if getattr(arguments, name) is not None:
            values[name] = _convert(name, getattr(arguments, name), f"--{flag_of(name)}")
    if arguments.model_argument is not None:
        values["model"] = arguments.model_argument
    return ServeSettings(**values)


def _from_file(path: Path) -> dict[str, Any]:
    try:
        # Its messages quote the file, which may hold a key: only the place is told.
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        raise ConfigError(f"{path} is not YAML{f', see line {mark.line + 1}' if mark else ''}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold `name: value` lines")
    values = {}
    for key, value in content.items():
        name = str(key).replace("-", "_")
        if name not in _FIELDS:
            raise ConfigError(f"{path}: unknown setting {key!r}; `kvferry serve --help` lists them")
        values[name] = _convert(name, value, f"{path}: {key}")
    return values


class _Loader(yaml.SafeLoader):
    """YAML in which only true and false are booleans: `grpc-port: off` is a word."""


_BOOLEAN_TAG = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOLEAN_TAG]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOLEAN_TAG, re.compile("true|false", re.IGNORECASE), list("tTfF"))


def _convert(name: str, value: Any, where: str) -> Any:
    """`value` in the setting's type. Raises `ConfigError`, which shows the value unless the setting is a secret."""
    field = _FIELDS[name]
    kind: type[Any] = type(field.default)
    if field.metadata["is_list"]:
        return _joined(value, where, is_secret=field.metadata["is_secret"])
    if kind is bool:
        converted = value if isinstance(value, bool) else _BOOLEANS.get(str(value).strip().lower())
    elif isinstance(value, bool | list | dict) or value is None:
        converted = None
    else:
        try:
            converted = kind(value)
        except (TypeError, ValueError):
            converted = None
    if converted is None:
        wanted = "true or false" if kind is bool else f"a {kind.__name__}"
        raise ConfigError(f"{where}: {value!r} is not {wanted}")
    return converted


def _joined(value: Any, where: str, *, is_secret: bool) -> str:
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(one, str) for one in values):  # YAML reads 0123 as 83: a key would silently be another
        raise ConfigError(f"{where} must be text, or a list of texts: put it in quotes")
    if is_secret and not all(part.strip() for one in values for part in one.split(",")):
        raise ConfigError(f"{where} is empty, or has an empty part: remove it, or give a key")
    return ",".join(values)

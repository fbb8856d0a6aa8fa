"""Reads settings from flags, the environment and a YAML file. The only place that looks at any of them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from cluster.settings import ServeSettings, environment_of, flag_of
from protocol.errors import ConfigError

_TYPES: dict[str, type[Any]] = {field.name: type(field.default) for field in fields(ServeSettings)}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """One flag per setting; unset flags are None, so that the environment and the file can speak."""
    parser.add_argument("model_argument", nargs="?", metavar="MODEL", help="the same as --model")
    parser.add_argument("--config", metavar="FILE", help="YAML file with the same names, e.g. `prefill: 2`")
    for field in fields(ServeSettings):
        choices = ", ".join(filter(None, field.metadata["choices"]))
        default = "" if field.default in ("", 0) else f"default {field.default}"
        hints = "; ".join(filter(None, (choices, default)))
        parser.add_argument(
            f"--{flag_of(field.name)}",
            dest=field.name,
            metavar=field.metadata["metavar"],
            help=f"{field.metadata['help']}{f' ({hints})' if hints else ''} [{environment_of(field.name)}]",
        )


def load_settings(arguments: argparse.Namespace, environment: Mapping[str, str]) -> ServeSettings:
    """The settings that apply. Raises `ConfigError` naming the flag, variable or key that is wrong."""
    config_file = arguments.config or environment.get(environment_of("config"))
    values = _from_file(Path(config_file)) if config_file else {}
    for name in _TYPES:
        if environment_of(name) in environment:
            values[name] = _convert(name, environment[environment_of(name)], environment_of(name))
    for name in _TYPES:
        if getattr(arguments, name) is not None:
            values[name] = _convert(name, getattr(arguments, name), f"--{flag_of(name)}")
    if arguments.model_argument is not None:
        values["model"] = arguments.model_argument
    return ServeSettings(**values)


def _from_file(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold `name: value` lines")
    values = {}
    for key, value in content.items():
        name = str(key).replace("-", "_")
        if name not in _TYPES:
            raise ConfigError(f"{path}: unknown setting {key!r}; `kvferry serve --help` lists them")
        values[name] = _convert(name, value, f"{path}: {key}")
    return values


def _convert(name: str, value: Any, where: str) -> Any:
    kind = _TYPES[name]
    if isinstance(value, bool) or value is None:
        raise ConfigError(f"{where}: {value!r} is not a {kind.__name__}")
    try:
        return kind(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{where}: {value!r} is not a {kind.__name__}") from None

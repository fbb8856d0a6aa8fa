"""Amounts of memory, and rates of links, as people write them."""

from __future__ import annotations

import re

from protocol.errors import ConfigError

_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kKmMgG]?)(bit|bit/s|B/s)\s*")


def parse_size(text: str) -> int:
    """Bytes of `512MiB`, `1.5GiB`, `2GB` or a plain number. Raises `ConfigError` for anything else."""
    match = _SIZE.fullmatch(str(text))
    unit = match.group(2).upper() if match else None
    if match is None or unit not in _UNITS:
        raise ConfigError(f"{text!r} is not a size: write a number with KiB, MiB, GiB, KB, MB or GB")
    return int(float(match.group(1)) * _UNITS[unit])


def format_size(num_bytes: float) -> str:
    """A size for people, in binary units."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} GiB"


def parse_rate(text: str) -> int:
    """Bytes per second of `25Mbit`, `100Gbit/s` or `3GB/s`, in decimal units.

    Raises `ConfigError` for anything else: `Mb` is read by some as bits and by others as bytes.
    """
    match = _RATE.fullmatch(str(text))
    if match is None:
        raise ConfigError(f"{text!r} is not a rate: write a number with kbit, Mbit, Gbit, kB/s, MB/s or GB/s")
    number, prefix, unit = match.groups()
    rate = float(number) * _PREFIXES[prefix.lower()] / (1 if unit == "B/s" else 8)
    if rate < 1:
        raise ConfigError(f"{text!r} is less than a byte per second: no link is that slow")
    return int(rate)


def format_rate(bytes_per_second: float) -> str:
    """A rate for people, in bytes per second and decimal units."""
    for unit in ("B/s", "kB/s", "MB/s"):
        if bytes_per_second < 1000:
            return f"{bytes_per_second:.0f} {unit}" if unit == "B/s" else f"{bytes_per_second:.1f} {unit}"
        bytes_per_second /= 1000
    return f"{bytes_per_second:.2f} GB/s"

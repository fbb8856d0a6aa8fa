"""Where a run takes place: the cluster, its processes, what it has when it is whole, and the link between its hosts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.processes import Family
from tests.chaos.watch import Shape
from tests.support.serving import Serving


def no_link(is_up: bool) -> None:
    """What a cluster on one host answers. Raises `RuntimeError`."""
    raise RuntimeError(f"there is no link here to set {'up' if is_up else 'down'}: run with --hosts")


@dataclass(frozen=True, slots=True)
class Site:
    """A running cluster. `set_link` cuts the link between its hosts, or mends it."""

    server: Serving
    family: Family
    shape: Shape
    set_link: Callable[[bool], None] = no_link

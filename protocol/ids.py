"""Identifiers: of requests, workers and their incarnations."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from protocol.errors import BadRequest

WIRE_ID_BYTES = 16
"""Length of a request's id on the KV plane, where tags are compared whole and therefore have one length."""


def new_request_id() -> str:
    """A fresh internal request id: 32 hexadecimal digits, that is `WIRE_ID_BYTES` random bytes."""
    return secrets.token_hex(WIRE_ID_BYTES)


def wire_id(request_id: str) -> bytes:
    """The `WIRE_ID_BYTES` bytes of an internal request id. Raises `BadRequest` for anything else."""
    try:
        raw = bytes.fromhex(request_id)
    except ValueError:
        raw = b""
    if len(raw) != WIRE_ID_BYTES:
        raise BadRequest(f"request id {request_id!r} is not {2 * WIRE_ID_BYTES} hexadecimal digits")
    return raw


def request_id_of(raw: bytes) -> str:
    """The internal request id that `wire_id` turned into these bytes."""
    return raw.hex()


@dataclass(frozen=True, slots=True, order=True)
class WorkerId:
    """A worker and one life of it. A restarted worker keeps its name and gets a new incarnation."""

    name: str
    incarnation: str

    @classmethod
    def fresh(cls, name: str) -> WorkerId:
        """This worker's next life, never equal to an earlier one."""
        return cls(name, secrets.token_hex(4))

    def __str__(self) -> str:
        return f"{self.name}@{self.incarnation}"

"""The rows of `docs/failure-modes.md` as scenarios in the duo. Importing this package registers all of them."""

from tests.duo.failure_modes import at_clients, on_decode, on_drain, on_prefill, on_the_wire

MODULES = (at_clients, on_prefill, on_the_wire, on_decode, on_drain)

"""What two processes must agree on: requests, phases, KV layout, tickets, errors and the protobuf messages.

Imports the standard library and protobuf only, so that any process may import it. Knows nothing of torch, Ray or NIXL.
"""

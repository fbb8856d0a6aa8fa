"""The messages of requests on their way to workers: both workers of a request get the same, which takes long to write."""

from __future__ import annotations

from collections import OrderedDict

from protocol import kvferry_worker_pb2 as pb
from protocol.request import GenerateRequest
from protocol.wire import generation_to_wire

MAX_MESSAGES = 64
"""Requests whose message is kept: as many as may be between their two workers at a time."""


class GenerationMessages:
    """The messages of the latest requests. May be shared by the clients of one loop."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[GenerateRequest, pb.Generation]] = OrderedDict()

    def of(self, request: GenerateRequest) -> pb.Generation:
        """The request's message, not to be changed."""
        kept = self._kept.get(request.request_id)
        if kept is not None and kept[0] is request:
            return kept[1]
        message = generation_to_wire(request)
        self._kept[request.request_id] = (request, message)
        if len(self._kept) > MAX_MESSAGES:
            self._kept.popitem(last=False)
        return message

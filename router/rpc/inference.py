"""The service `kvferry.v1.Inference`: from a call to a plan, and from the plan to its stream."""

from __future__ import annotations

import asyncio
import logging
import time

import grpc
from google.protobuf.message import DecodeError

from protocol.errors import BadRequest, DeadlineExceeded
from protocol.kvferry_v1_pb2 import DESCRIPTOR, GenerateRequest, GenerateResponse, ListModelsResponse, Model
from router.front.answering import Answering, Call
from router.front.chat_body import ChatBody
from router.front.chat_plan import plan_chat
from router.front.completion_body import CompletionBody
from router.front.completion_plan import plan_completion
from router.front.errors import as_kvferry_error
from router.front.front import Front
from router.front.planning import Plan
from router.front.validation import parse_fields
from router.rpc.calls import Context, open_call, refuse_call
from router.rpc.request_fields import fields_of, is_chat
from router.rpc.writer import RpcWriter

LOG = logging.getLogger(__name__)
SERVICE = str(DESCRIPTOR.services_by_name["Inference"].full_name)
ENDPOINT = "grpc"
"""The label of this door in the metrics."""
ANSWER_MARGIN_S = 0.05
"""Taken off a call's deadline, so that the client still hears from the server what became of its call."""


class MalformedMessage(BadRequest):
    """The message is no protobuf message of the method."""

    code = "malformed_message"


class InferenceService:
    """Serves one front. Cancelled calls cancel their requests: gRPC then cancels the task that runs the method."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._retry_after_s = front.config.retry_after_s
        self._num_running = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the methods. `Generate` gets raw messages: one that is none is refused like any other wrong request."""
        generate = grpc.unary_stream_rpc_method_handler(
            self._generate, response_serializer=GenerateResponse.SerializeToString
        )
        list_models = grpc.unary_unary_rpc_method_handler(
            self._list_models, response_serializer=ListModelsResponse.SerializeToString
        )
        handlers = {"Generate": generate, "ListModels": list_models}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    async def settle(self, timeout_s: float) -> None:
        """Returns when no generation runs any more: those of cancelled calls are still cleaning up for a moment.

        Raises `DeadlineExceeded`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._is_idle.wait()
        except TimeoutError:
            raise DeadlineExceeded(f"{self._num_running} gRPC calls did not end within {timeout_s:g} s") from None

    async def _generate(self, raw: bytes, context: Context) -> None:
        """Streams the answers to one prompt."""
        self._num_running += 1
        self._is_idle.clear()
        try:
            await self._answer(raw, context)
        finally:
            self._num_running -= 1
            if not self._num_running:
                self._is_idle.set()

    async def _answer(self, raw: bytes, context: Context) -> None:
        arrived_at = time.monotonic()
        request_id = await open_call(context, self._retry_after_s)
        try:
            timeout_s = self._timeout_s(context, arrived_at)
            self._front.admission.check(self._front.config.patience_s(timeout_s))
            plan = await self._planned(raw)
        except Exception as failure:  # noqa: BLE001 - the client is told, and what was not raised on purpose is logged
            error = as_kvferry_error(failure, request_id)
            self._front.count_refusal(ENDPOINT, error, request_id)
            LOG.info("request %s refused: %s, parameter %s", request_id, error.code, error.param)
            await refuse_call(context, error, self._retry_after_s)
        writer = RpcWriter(context, plan, self._front.tokenizer)
        call = Call(request_id, ENDPOINT, timeout_s, arrived_at)
        await Answering(self._front, plan, call).run(writer)
        if writer.failure is not None:
            await refuse_call(context, writer.failure, self._retry_after_s)

    async def _list_models(self, raw: bytes, context: Context) -> ListModelsResponse:
        """The one model that is served. The request has no fields, so it is not read."""
        del raw
        await open_call(context, self._retry_after_s)
        config = self._front.config
        model = Model(
            id=config.served_model_name, created=self._front.started_at, max_model_len=config.max_total_tokens
        )
        return ListModelsResponse(models=[model])

    async def _planned(self, raw: bytes) -> Plan:
        planners = self._front.planners
        return await planners.run(len(raw), lambda: _plan(self._front, raw), has_schema=_may_have_schema(raw))

    def _timeout_s(self, context: Context, arrived_at: float) -> float:
        """From the arrival on: what the call's own deadline leaves, but never more than the server's limit."""
        limit_s = self._front.config.request_timeout_s
        remaining_s = context.time_remaining()
        if remaining_s is None:
            return limit_s
        own_s = remaining_s - min(ANSWER_MARGIN_S, remaining_s / 10)
        return min(time.monotonic() - arrived_at + own_s, limit_s)


def _may_have_schema(raw: bytes) -> bool:
    """Whether a message may hold a schema: each stands in it as JSON text, an object."""
    return b"{" in raw


def _plan(front: Front, raw: bytes) -> Plan:
    try:
        request = GenerateRequest.FromString(raw)
    except DecodeError as error:
        raise MalformedMessage(f"the message is no {GenerateRequest.DESCRIPTOR.full_name}: {error}") from None
    fields = fields_of(request)
    if is_chat(request):
        chat = parse_fields(ChatBody, fields)
        front.check_model(chat.model)
        return plan_chat(front, chat)
    completion = parse_fields(CompletionBody, fields)
    front.check_model(completion.model)
    return plan_completion(front, completion)

"""Text to token ids and back over HTTP, as vLLM serves them, and the version. No worker is asked and nothing is admitted."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Any, Self

from fastapi import FastAPI
from pydantic import Field, model_validator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from protocol.errors import BadRequest
from router.front.chat_message import ChatMessage, turns_of
from router.front.front import Front
from router.front.sampling_body import Strict, wrong
from router.front.tools.body import MAX_TOOLS, Tool
from router.front.tools.offer import offer_of
from router.front.validation import parse_json
from router.http.body import read_body

DISTRIBUTION = "kvferry"


class TokenizeBody(Strict):
    """`POST /tokenize`: a `prompt`, or the `messages` of a chat, as `/v1/chat/completions` would read them.

    Unless `add_special_tokens` says otherwise, a prompt gets what the model wants around a text, and a chat only what its
    template writes. `add_generation_prompt` and `tools` are for chats.
    """

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    tools: Annotated[list[Tool] | None, Field(max_length=MAX_TOOLS)] = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _has_one_text(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise wrong("give either prompt or messages")
        for field in ("add_generation_prompt", "tools"):
            if self.messages is None and getattr(self, field) is not None:
                raise wrong(f"{field} needs messages")
        return self


class DetokenizeBody(Strict):
    """`POST /detokenize`. Special tokens are written out."""

    model: str | None = None
    tokens: list[int]


def add_text_routes(app: FastAPI, front: Front) -> None:
    """Adds `POST /tokenize`, `POST /detokenize` and `GET /version`."""

    def add(path: str, answer_of: Callable[[Front, bytes], dict[str, Any]]) -> None:
        async def answer(request: Request) -> Response:
            raw = await read_body(request, front.config.max_body_bytes, front.config.body_timeout_s)
            return await front.planners.run(len(raw), lambda: JSONResponse(answer_of(front, raw)))

        app.add_route(path, answer, methods=["POST"])

    add("/tokenize", _tokenized)
    add("/detokenize", _detokenized)

    @app.get("/version")
    async def own_version() -> Response:
        return JSONResponse({"version": version(DISTRIBUTION)})


def _tokenized(front: Front, raw: bytes) -> dict[str, Any]:
    body = parse_json(TokenizeBody, raw)
    front.check_model(body.model)
    tokens = _token_ids(front, body)
    spelt = [front.tokenizer.token(token_id) for token_id in tokens] if body.return_token_strs else None
    return {
        "count": len(tokens),
        "max_model_len": front.config.max_total_tokens,
        "tokens": tokens,
        "token_strs": spelt,
    }


def _token_ids(front: Front, body: TokenizeBody) -> list[int]:
    if body.messages is None:
        return front.tokenizer.encode(body.prompt or "", body.add_special_tokens is not False)
    offer = offer_of(front.tokenizer, body.tools or (), None, is_parallel=True)
    turns = turns_of(front.tokenizer, body.messages)
    has_opening = body.add_generation_prompt is not False
    text = front.tokenizer.chat_prompt(turns, None if offer is None else offer.rendered, has_opening)
    return front.tokenizer.encode(text, bool(body.add_special_tokens))


def _detokenized(front: Front, raw: bytes) -> dict[str, Any]:
    body = parse_json(DetokenizeBody, raw)
    front.check_model(body.model)
    outside = next((token_id for token_id in body.tokens if not 0 <= token_id < front.vocab_size), None)
    if outside is not None:
        raise BadRequest(
            f"tokens has the token id {outside}; the model's vocabulary is [0, {front.vocab_size})", param="tokens"
        )
    return {"prompt": front.tokenizer.decode(body.tokens, skip_special_tokens=False)}

"""Whatever JSON a client sends, the answer is a completion or a refusal, never a failure of the server."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.front.chat_body import ChatBody
from router.front.completion_body import CompletionBody
from tests.support.http_front import FrontUnderTest

ANY_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def _bodies(schema: type[CompletionBody | ChatBody], start: dict[str, Any]) -> st.SearchStrategy[Any]:
    fields = st.sampled_from(sorted(schema.model_fields))
    near = st.dictionaries(fields, ANY_JSON, max_size=4).map(lambda changes: start | changes)
    return near | ANY_JSON


@pytest.fixture(scope="module")
def front() -> FrontUnderTest:
    """One application for all examples."""
    return FrontUnderTest()


@given(body=_bodies(CompletionBody, {"prompt": "hi"}))
async def test_completions_never_fail_on_any_json(front: FrontUnderTest, body: Any) -> None:
    """Arbitrary values in known fields, and arbitrary bodies."""
    await _check(front, "/v1/completions", body)


@given(body=_bodies(ChatBody, {"messages": [{"role": "user", "content": "hi"}]}))
async def test_chat_never_fails_on_any_json(front: FrontUnderTest, body: Any) -> None:
    """Arbitrary values in known fields, and arbitrary bodies."""
    await _check(front, "/v1/chat/completions", body)


@given(body=st.binary(max_size=64))
async def test_completions_never_fail_on_any_bytes(front: FrontUnderTest, body: bytes) -> None:
    """Bodies that are no JSON at all."""
    response = await front.post("/v1/completions", body)
    assert response.status_code < 500


async def _check(front: FrontUnderTest, path: str, body: Any) -> None:
    response = await front.post(path, json.dumps(body).encode())
    assert response.status_code < 500
    if response.status_code != 200:
        assert response.json()["error"]["message"]

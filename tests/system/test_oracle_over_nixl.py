"""The oracle on the real system: Ray, gRPC, NIXL, HTTP. Greedy text equals the same engine in one piece."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from cluster.worker_process import load_engine
from cluster.worker_spec import WorkerSpec
from engine.engine import Engine
from tests.support.byte_tokenizer import EOS_ID, VOCAB_SIZE, byte_tokenizer
from tests.support.oracle import answer_in_one_piece, prompt_of
from tests.support.serving import Serving

pytestmark = pytest.mark.system

BLOCK, CHUNK, NUM_TOKENS = 16, 64, 24
NUM_GREEDY, SHORT_PROMPT, LONG_ANSWER = 8, 40, 400
LENGTHS = sorted(
    {
        *(1, 2, 6, 7, 8, 9, 11, 12),
        *(BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1, 3 * BLOCK, 40, 47, 49, 55, 56, 57),
        *(
            CHUNK - 1,
            CHUNK,
            CHUNK + 1,
            2 * CHUNK - 1,
            2 * CHUNK,
            2 * CHUNK + 1,
            3 * CHUNK - 1,
            3 * CHUNK,
            3 * CHUNK + 1,
        ),
        *range(200, 400, 13),
        *(511, 512, 513, 700, 1000),
    }
)


@pytest.fixture(scope="module")
def oracle(tiny_model: Path) -> Engine:
    """The engine that the workers run, in this process and alone."""
    spec = WorkerSpec(
        name="oracle",
        role="decode",
        model=str(tiny_model),
        device="cpu",
        num_threads=1,
        index=0,
        host_address="",
        kv_cache_bytes=2 * 2**20,
        kv_dtype="auto",
        compute_dtype="auto",
        block_size=BLOCK,
        attention="auto",
        max_step_tokens=64,
        max_sequences=8,
        num_slots=1,
        slot_bytes=2**20,
        log_level="info",
    )
    return load_engine(spec, lambda _: None)


def _ask(server: Serving, prompt: list[int], num_tokens: int) -> openai.types.Completion:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    return client.completions.create(
        model=model, prompt=prompt, max_tokens=num_tokens, temperature=0, extra_body={"ignore_eos": True}, timeout=120
    )


def test_every_length_under_concurrency(pair: Serving, oracle: Engine) -> None:
    """At least 50 prompts around every boundary, eight at a time, equal the oracle; all KV was ferried, none computed twice."""
    assert len(LENGTHS) >= 50
    before = pair.worker("decode-0")["status"]
    prompts = [prompt_of(length, 256) for length in LENGTHS]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda prompt: _ask(pair, prompt, NUM_TOKENS), prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        expected = answer_in_one_piece(oracle, prompt, NUM_TOKENS)
        text = byte_tokenizer().decode([token for token in expected if token != EOS_ID])
        assert answer.choices[0].text == text, f"{len(prompt)} prompt tokens"
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(prompt), NUM_TOKENS)
    pair.wait_idle()
    after = pair.worker("decode-0")["status"]
    assert after["num_transfer_failures"] == before["num_transfer_failures"]
    assert after["num_remote_prefill_tokens"] - before["num_remote_prefill_tokens"] == sum(LENGTHS)


def test_forced_preemption(pair: Serving, oracle: Engine) -> None:
    """Answers that do not fit the decode worker's pool together are preempted, computed again, and equal the oracle.

    Prompts are short and answers long: all are admitted before the first has grown, however quick the workers are.
    """
    before = pair.worker("decode-0")["status"]["num_preemptions"]
    assert pair.worker("decode-0")["capacity_tokens"] < NUM_GREEDY * (SHORT_PROMPT + LONG_ANSWER)
    prompts = [prompt_of(SHORT_PROMPT, VOCAB_SIZE - 1, seed) for seed in range(NUM_GREEDY)]
    with ThreadPoolExecutor(NUM_GREEDY) as pool:
        answers = list(pool.map(lambda prompt: _ask(pair, prompt, LONG_ANSWER), prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        expected = answer_in_one_piece(oracle, prompt, LONG_ANSWER)
        assert answer.choices[0].text == byte_tokenizer().decode([token for token in expected if token != EOS_ID])
    pair.wait_idle()
    assert pair.worker("decode-0")["status"]["num_preemptions"] > before

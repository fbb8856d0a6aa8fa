"""The demonstration model in kvferry's engine against the same directory in transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from engine.batch import StepBatch
from engine.build import EngineConfig, build_engine
from engine.checkpoint.resolve import resolve_model
from engine.engine import Engine
from engine.open_model import open_model
from tests.support.generate import logits_in_chunks, slice_of

pytestmark = pytest.mark.system

QUESTION = "Explain in two sentences why the sky is blue, and what the capital of France is."
NUM_ANSWER_TOKENS = 48
TOLERANCE = 1e-4
PACKED_TOLERANCE = 2e-4
"""Logits reach 38 here, and transformers' own float32 is 1e-4 away from its float64. The packed products of the CPU round a
little more than torch's plain ones: 1.4e-4 from either.
"""


@pytest.fixture(scope="module")
def directory() -> Path:
    """The converted demonstration model, fetched if need be."""
    return resolve_model("smollm2-135m").path


@pytest.fixture(scope="module")
def oracle(directory: Path) -> Any:
    """The model in transformers, in float32 with eager attention."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    )


@pytest.fixture(scope="module")
def prompt(directory: Path) -> list[int]:
    """A chat with one question, as token ids."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    chat = [{"role": "user", "content": QUESTION}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    return ids


def _engine(directory: Path, attention: str) -> Engine:
    config, source = open_model(directory)
    return build_engine(EngineConfig(num_blocks=32, attention=attention), config, source)


NEIGHBOURS = list(range(16))
SCATTERED = list(range(31, 15, -1))


@pytest.mark.parametrize(("attention", "table"), [("reference", SCATTERED), ("fast", SCATTERED), ("fast", NEIGHBOURS)])
def test_logits_and_text_equal_transformers(
    directory: Path, oracle: Any, prompt: list[int], attention: str, table: list[int]
) -> None:
    """Logits of the prompt and of each step of the greedy answer, and its text, are those of transformers."""
    engine = _engine(directory, attention)
    with torch.inference_mode():
        ids = torch.tensor([prompt])
        answer = oracle.generate(ids, max_new_tokens=NUM_ANSWER_TOKENS, do_sample=False)[0, len(prompt) :].tolist()
        expected = oracle(torch.tensor([prompt + answer])).logits[0]
    chunks = [len(prompt) - 11, 10, 1]
    found = [logits_in_chunks(engine, prompt, chunks, table)]
    text = [int(found[0][-1].argmax())]
    for at, token in enumerate(answer[:-1], start=len(prompt)):
        found.append(engine.logits(StepBatch((slice_of([token], at, table),))))
        text.append(int(found[-1][-1].argmax()))
    assert text == answer
    tolerance = TOLERANCE if attention == "reference" else PACKED_TOLERANCE
    torch.testing.assert_close(torch.cat(found), expected[:-1], atol=tolerance, rtol=0)


def test_two_loads_have_one_fingerprint(directory: Path) -> None:
    """A worker that loads the same directory again gets the same fingerprint, and the model's end tokens."""
    engines = [_engine(directory, "reference") for _ in range(2)]
    assert engines[0].layout.model_fingerprint == engines[1].layout.model_fingerprint
    assert engines[0].config.eos_token_ids

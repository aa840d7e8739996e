"""Text that is on every machine: the source code of the running Python's standard library."""

from __future__ import annotations

import functools
import hashlib
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from torchtpu_dist.errors import RecipeError

Split = Literal["train", "validation"]

_SKIPPED_FOLDERS = frozenset(
    {
        "site-packages",  # installed, not part of Python
        "dist-packages",
        "test",  # larger than all the rest together, and often packaged apart
        "tests",
        "idle_test",
        "encodings",  # tables, written by programs
        "pydoc_data",
        "__pycache__",
    }
)
_SKIPPED_FILE_PREFIX = "_sysconfigdata"  # describes the machine Python was built on
_VALIDATION_EVERY = 20


@dataclass(frozen=True)
class Corpus:
    """Documents of one split, in the order of their names."""

    names: tuple[str, ...]
    """Path of each document below the library's root, with ``/``."""
    content: npt.NDArray[np.uint8]
    """All documents end to end: uint8 [num_bytes]."""
    offsets: npt.NDArray[np.int64]
    """Document i is ``content[offsets[i]:offsets[i + 1]]``: int64 [len(names) + 1]."""
    digest: str
    """Identifies names and contents of *both* splits: 16 hexadecimal digits."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all documents."""
        return len(self.content)

    def documents(self) -> Iterator[npt.NDArray[np.uint8]]:
        """The content of each document, uint8 [its length]."""
        for start, end in zip(self.offsets[:-1], self.offsets[1:], strict=True):
            yield self.content[start:end]


def python_stdlib_corpus(split: Split) -> Corpus:
    """The ``*.py`` files of the running Python's standard library, some of them held out.

    Left out are installed packages, the test suite, and files written by programs. Of files with equal content the
    first by name is kept, empty files are not. About one file in twenty is held out for validation, chosen by the
    hash of its path below the library's root, so a file never changes sides and no content is on both.
    Machines with the same release of Python have the same corpus; ``digest`` says whether they do.

    Both splits are read together (in a fraction of a second) and kept for the life of the process, so asking for the
    second one is free. Raises :class:`RecipeError` when the library comes without its source.
    """
    return _splits(sysconfig.get_path("stdlib"))[split]


def byte_unigram_entropy(split: Split = "validation") -> float:
    """Entropy of the bytes of a split, ``-sum p log p`` over its own distribution of bytes: nats a byte.

    It is the mean loss of the best model that ignores all context, one that even knows how often each byte stands in
    this very text. A validation loss below it is due to the order of bytes alone. Divide by log 2 for bits a byte.
    """
    counts = np.bincount(python_stdlib_corpus(split).content, minlength=256).astype(np.float64)
    p = counts[counts > 0] / counts.sum()
    return float(-(p * np.log(p)).sum())


@functools.cache
def _splits(root: str) -> dict[Split, Corpus]:
    members: dict[Split, list[tuple[str, bytes]]] = {"train": [], "validation": []}
    digest = hashlib.sha256()
    seen: set[bytes] = set()
    for name in _source_files(Path(root)):
        content = (Path(root) / name).read_bytes()
        content_hash = hashlib.sha256(content).digest()
        if not content or content_hash in seen:
            continue
        seen.add(content_hash)
        digest.update(name.encode() + b"\0" + content_hash)
        members[_split_of(name)].append((name, content))
    for split, documents in members.items():
        if not documents:
            raise RecipeError(
                f"data.source: python_stdlib found no {split} files among the {len(seen)} source files in {root}; "
                "expected the standard library with its source, so use a Python that ships it"
            )
    return {split: _concatenate(documents, digest.hexdigest()[:16]) for split, documents in members.items()}


def _source_files(root: Path) -> list[str]:
    found = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _SKIPPED_FOLDERS]
        below = Path(folder).relative_to(root)
        found += [
            (below / name).as_posix()
            for name in files
            if name.endswith(".py") and not name.startswith(_SKIPPED_FILE_PREFIX)
        ]
    return sorted(found)


def _split_of(name: str) -> Split:
    lot = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    return "validation" if lot % _VALIDATION_EVERY == 0 else "train"


def _concatenate(documents: list[tuple[str, bytes]], digest: str) -> Corpus:
    lengths = [len(content) for _, content in documents]
    return Corpus(
        names=tuple(name for name, _ in documents),
        content=np.frombuffer(b"".join(content for _, content in documents), dtype=np.uint8),
        offsets=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
        digest=digest,
    )

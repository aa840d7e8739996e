"""The corpus: the same every time, its splits apart, nothing twice."""

import hashlib
import math
import random
from pathlib import Path

import numpy as np
import pytest

from torchtpu_dist.data import corpus as corpus_module
from torchtpu_dist.data.corpus import byte_unigram_entropy, python_stdlib_corpus
from torchtpu_dist.errors import RecipeError


def test_splits_share_no_file_and_no_content() -> None:
    train, held_out = python_stdlib_corpus("train"), python_stdlib_corpus("validation")
    assert train.digest == held_out.digest
    assert not set(train.names) & set(held_out.names)
    contents = [hashlib.sha256(document).digest() for split in (train, held_out) for document in split.documents()]
    assert len(contents) == len(set(contents))
    assert 0.02 < len(held_out.names) / (len(train.names) + len(held_out.names)) < 0.08
    assert train.num_bytes > 3_000_000
    for corpus in (train, held_out):
        assert list(corpus.names) == sorted(corpus.names)
        assert sum(len(document) for document in corpus.documents()) == corpus.num_bytes
        assert not any("test" in Path(name).parts[:-1] for name in corpus.names)


def test_documents_are_the_files(tmp_path: Path) -> None:
    _write_library(tmp_path, random.Random(0))
    splits = corpus_module._splits(str(tmp_path))
    for corpus in splits.values():
        for name, document in zip(corpus.names, corpus.documents(), strict=True):
            assert document.tobytes() == (tmp_path / name).read_bytes()


def test_the_order_of_the_disk_does_not_matter_but_every_byte_does(tmp_path: Path) -> None:
    for number, folder in enumerate(("one", "two", "three")):
        _write_library(tmp_path / folder, random.Random(number))
    (tmp_path / "three" / "m7.py").write_text("changed\n")
    one, two, three = (corpus_module._splits(str(tmp_path / folder)) for folder in ("one", "two", "three"))
    assert one["train"].digest == two["train"].digest != three["train"].digest
    assert one["train"].names == two["train"].names
    assert np.array_equal(one["train"].content, two["train"].content)


def _write_library(root: Path, order: random.Random) -> None:
    """60 modules, a copy of one, an empty one, and things that do not belong; created in the order drawn."""
    files = {f"m{number}.py": f"x = {number}\n" for number in range(60)}
    files |= {"zcopy.py": "x = 5\n", "empty.py": "", "notes.txt": "no", "_sysconfigdata_x.py": "y = 1\n"}
    files |= {"test/t.py": "z = 1\n", "site-packages/p.py": "z = 2\n", "package/__init__.py": "z = 3\n"}
    names = list(files)
    order.shuffle(names)
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(files[name])


def test_what_does_not_belong_is_left_out(tmp_path: Path) -> None:
    _write_library(tmp_path, random.Random(0))
    names = {name for corpus in corpus_module._splits(str(tmp_path)).values() for name in corpus.names}
    assert names == {f"m{number}.py" for number in range(60)} | {"package/__init__.py"}


def test_a_library_without_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"data\.source.*no train files among the 0"):
        corpus_module._splits(str(tmp_path))


def test_entropy_of_the_validation_bytes() -> None:
    content = python_stdlib_corpus("validation").content.tobytes()
    by_hand = -sum(
        (count := content.count(bytes([byte]))) / len(content) * math.log(count / len(content)) for byte in set(content)
    )
    assert byte_unigram_entropy() == pytest.approx(by_hand)
    assert 2.5 < by_hand < 3.8  # source code: about 4.5 bits

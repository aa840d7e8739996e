"""Packing: every token counted once, nothing learned across the edge of a document."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from torchtpu_dist.data import packing
from torchtpu_dist.data.packing import IGNORE, pack
from torchtpu_dist.data.tokenizer import ByteTokenizer
from torchtpu_dist.models import loss

TOKENIZER = ByteTokenizer()
BOS, EOS, PAD = TOKENIZER.bos_id, TOKENIZER.eos_id, TOKENIZER.pad_id


@given(documents=st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=6), seq_len=st.integers(1, 12))
def test_every_byte_and_every_end_is_a_label_once(documents: list[bytes], seq_len: int) -> None:
    packed = pack([np.frombuffer(document, dtype=np.uint8) for document in documents], TOKENIZER, seq_len)
    samples = [packed.sample(index) for index in range(len(packed))]
    assert all(part.shape == (seq_len,) and part.dtype == np.int64 for sample in samples for part in sample)
    labels = [int(label) for _, sample_labels in samples for label in sample_labels if label != IGNORE]
    assert labels == [token for document in documents for token in (*document, EOS)]
    tokens = [int(token) for sample_tokens, _ in samples for token in sample_tokens]
    stream = [token for document in documents for token in (BOS, *document, EOS)]
    assert tokens[: len(stream) - 1] == stream[:-1]  # the last token has no successor
    assert any(label != IGNORE for label in samples[-1][1])  # no sample is padding alone


def test_edge_of_documents_and_padding() -> None:
    packed = pack([np.frombuffer(text, dtype=np.uint8) for text in (b"ab", b"c")], TOKENIZER, seq_len=4)
    tokens, labels = packed.sample(0)
    assert tokens.tolist() == [BOS, 97, 98, EOS]
    assert labels.tolist() == [97, 98, EOS, IGNORE]
    tokens, labels = packed.sample(1)
    assert tokens.tolist() == [BOS, 99, EOS, PAD]
    assert labels.tolist() == [99, EOS, IGNORE, IGNORE]
    tokens, labels = packed.sample(2)
    assert tokens.tolist() == [PAD] * 4
    assert labels.tolist() == [IGNORE] * 4


def test_the_label_of_nothing_is_the_one_the_loss_leaves_out() -> None:
    assert packing.IGNORE == loss.IGNORE


@given(text=st.text(alphabet="a\n\0é中😀", max_size=50))
def test_text_survives_the_tokenizer(text: str) -> None:
    tokens = TOKENIZER.encode(text)
    assert all(TOKENIZER.is_text(token) for token in tokens)
    assert TOKENIZER.decode([BOS, *tokens, EOS, PAD, 300]) == text


def test_bytes_that_are_no_text_do_not_stop_a_sample() -> None:
    assert TOKENIZER.decode([0xC3, 0x28]) == "�("

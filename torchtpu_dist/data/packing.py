"""From documents of all lengths to samples of one length."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torchtpu_dist.data.tokenizer import ByteTokenizer

IGNORE = -100
"""The label of a position that is not predicted; the same number as in the loss."""


@dataclass(frozen=True)
class PackedSamples:
    """All documents end to end as one row of tokens, cut into samples of ``seq_len``.

    Sample i has the tokens ``stream[i * seq_len : (i + 1) * seq_len]`` as input and each one's successor as label.
    So every token of the stream but the first is a label exactly once, across the edges of samples too. Two kinds of
    label are :data:`IGNORE`: the beginning of a document (nothing before it tells of it), and what lies behind the end
    of the stream, where the last sample is filled up with padding. A sample may hold the end of one document and
    the beginning of the next; attention sees both.
    """

    stream: npt.NDArray[np.uint16]
    seq_len: int
    bos_id: int
    pad_id: int

    def __len__(self) -> int:
        """Number of samples, the padded last one included."""
        return -(-(len(self.stream) - 1) // self.seq_len)

    def sample(self, index: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Tokens and labels of a sample: int64 [seq_len] each. Any index behind the last gives pure padding."""
        window = np.full(self.seq_len + 1, self.pad_id, dtype=np.int64)
        start = index * self.seq_len
        piece = self.stream[start : start + self.seq_len + 1]
        if len(piece) > 1:
            window[: len(piece)] = piece
        tokens, labels = window[:-1], window[1:].copy()
        labels[(labels == self.bos_id) | (labels == self.pad_id)] = IGNORE
        return tokens, labels


def pack(documents: Iterable[npt.NDArray[np.uint8]], tokenizer: ByteTokenizer, seq_len: int) -> PackedSamples:
    """Lay ``documents`` end to end, each between its marks, in the order given."""
    stream = np.concatenate([tokenizer.encode_document(document) for document in documents])
    return PackedSamples(stream, seq_len, bos_id=tokenizer.bos_id, pad_id=tokenizer.pad_id)

"""One token a byte."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class ByteTokenizer:
    """Tokens 0..255 are bytes, then three marks; the rest up to ``vocab_size`` is never used.

    320 rather than 259 tokens, so that the vocabulary can be cut into 2, 4 ... 64 equal pieces.
    """

    bos_id = 256
    """Stands before every document."""
    eos_id = 257
    """Stands after every document."""
    pad_id = 258
    """Fills what has to have a fixed length; never predicted."""
    vocab_size = 320

    def encode(self, text: str) -> list[int]:
        """The UTF-8 bytes of ``text``, without marks."""
        return list(text.encode())

    def encode_document(self, content: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint16]:
        """``content`` between its two marks: uint16 [len(content) + 2]."""
        tokens = np.empty(len(content) + 2, dtype=np.uint16)
        tokens[0], tokens[-1] = self.bos_id, self.eos_id
        tokens[1:-1] = content
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of ``tokens``; marks and unused ids are left out, bytes that are no UTF-8 become U+FFFD."""
        return bytes(token for token in tokens if self.is_text(token)).decode(errors="replace")

    def is_text(self, token: int) -> bool:
        """Whether ``token`` is a byte."""
        return 0 <= token < 256

"""The arrays that go from one package to another, with what they hold.

A name says dtype and shape; a docstring says what else there is to know.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]  # of shape (n,); negative ones stand for parts of media items
Logits = npt.NDArray[np.float32]  # of shape (num_vocab,)
EmbeddingRows = npt.NDArray[np.float32]  # of shape (num_tokens, num_embd)
Positions = npt.NDArray[np.int32]  # of shape (sections, num_tokens); 1 section, or 4 with M-RoPE
StateBytes = npt.NDArray[np.uint8]  # of shape (n,)

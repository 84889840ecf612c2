"""Typed faces of llama.cpp's library; the only package that knows cffi.

Nothing outside this package sees a cffi object. All calls on a `Context` come from one thread.
"""

from milepost.libllama.batch import Batch
from milepost.libllama.context import Context, ContextParams
from milepost.libllama.loader import PINNED_XLLAMACPP, Library, open_library
from milepost.libllama.model import Model, ModelParams
from milepost.libllama.sampler_chain import Candidates, Grammar, SamplerChain
from milepost.libllama.vocab import NO_TOKEN, Vocab, encode_text

__all__ = [
    "NO_TOKEN",
    "PINNED_XLLAMACPP",
    "Batch",
    "Candidates",
    "Context",
    "ContextParams",
    "Grammar",
    "Library",
    "Model",
    "ModelParams",
    "SamplerChain",
    "Vocab",
    "encode_text",
    "open_library",
]

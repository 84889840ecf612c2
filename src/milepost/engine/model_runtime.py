"""What the parts of the engine share of a loaded model: its context and its caches."""

from __future__ import annotations

from dataclasses import dataclass, field

from milepost.cache.prefix_cache import PrefixCache
from milepost.engine.media.layouts import MediaModel
from milepost.engine.memory_probe import MemoryTraits
from milepost.engine.prompt_logits import PromptLogits
from milepost.libllama import Context
from milepost.libllama.state import StateIO


@dataclass(frozen=True, slots=True)
class ModelRuntime:
    """A loaded model at work: its context, what that can do, and the cache beside it."""

    context: Context
    states: StateIO
    traits: MemoryTraits
    cache: PrefixCache
    num_parked: int = 0  # sequence ids of the context for conversations without a slot
    media: MediaModel | None = None  # a projector and what goes with it
    prompt_logits: PromptLogits = field(default_factory=PromptLogits)

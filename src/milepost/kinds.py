"""Names that several packages have for the kinds of a thing: each is written here, and only here.

Imports nothing, so that every package may import it. Kinds that one package alone names are there.
"""

from __future__ import annotations

from typing import Literal

# Where in a prompt later requests may stop sharing it.
BoundaryKind = Literal[
    "system_end",
    "date",  # before the first one in the system prompt
    "message_end",
    "last_user",  # before the last user message
    "prompt_end",  # before the generation prompt
    "breakpoint",  # the client asked for it
]
# Roles of messages that have an older or a newer name besides the usual one, which is first.
SYSTEM_ROLES = ("system", "developer")
TOOL_ROLES = ("tool", "function")
MediaKind = Literal["image", "audio"]
# Whether a sequence can be cut back: only "full", and "window" where it keeps all of its cells.
MemoryKind = Literal["full", "window", "recurrent", "hybrid"]
# When conversations are written to disk.
SyncMode = Literal["turn", "idle", "exit"]
# Where the reasoning of a reply is put, in llama-server's words: `auto` is `deepseek`; `none`
# leaves it in the content as it was written; `deepseek-legacy` does both.
ReasoningPlace = Literal["auto", "none", "deepseek", "deepseek-legacy"]

# As llama.cpp names them; libllama has the number of each.
CacheType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]
FlashAttention = Literal["on", "off", "auto"]
LoadMode = Literal["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"]
RopeScaling = Literal["none", "linear", "yarn"]
SplitMode = Literal["none", "layer", "row", "tensor"]

"""The oracle gives the figures that were found for upstream's server with the same traces.

They hold for one template and the vocabulary of SmolLM2.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
from tests.published import TEMPLATE_FOLDER, TRACE_FOLDER

from milepost.bench.oracle import Oracle, count_needed
from milepost.chat.conversation.conversation import make_conversation
from milepost.chat.templates.template import ChatTemplate
from milepost.libllama import Model, ModelParams, open_library
from milepost.traces.trace import read_trace

TRACE = TRACE_FOLDER / "large-session.append_only.jsonl"
TEMPLATE = TEMPLATE_FOLDER / "Qwen3.5-4B.jinja"
NUM_REQUESTS = 90


def test_append_only_needs_what_was_found_to_be_enough(smollm2_path: Path) -> None:
    model = Model(open_library(), smollm2_path, ModelParams(vocab_only=True))
    template = ChatTemplate(TEMPLATE.read_text("utf-8"), name="qwen")
    oracle, num_tokens, num_needed = Oracle(), 0, 0

    for request in islice(read_trace(TRACE).requests(), NUM_REQUESTS):
        text = template.render(make_conversation(request.messages, request.tools)).text
        tokens = model.vocab.tokenize(text, add_special=True, parse_special=True)
        prompt = np.array(tokens, np.int32)
        num_tokens += len(prompt)
        num_needed += count_needed(len(prompt), oracle.count_known(prompt))
        oracle.remember(prompt)

    assert (num_tokens, num_needed) == (1_169_081, 37_916)

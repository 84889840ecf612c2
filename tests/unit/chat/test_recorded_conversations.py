"""Recorded tool conversations render with every published template that accepts their order.

The recordings and templates are not part of the project; without them these tests are skipped.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.vocab import FakeVocab

from milepost.chat.conversation import Conversation, parse_conversation
from milepost.chat.template import ChatTemplate, SpecialTexts
from milepost.errors import TemplateFailed

SHARED = Path(__file__).parents[4] / "shared"
TEMPLATES = sorted((SHARED / "templates").glob("*.jinja"))

# Template -> what it says to the conversations that it refuses: all about which messages may be
# where, and how many calls in one.
ALTERNATING = "conversation roles must alternate user/assistant"
SINGLE_CALLS = "only supports single tool-calls at once"
REFUSALS = {
    "google-gemma-2-2b-it": "System role not supported",
    "meta-llama-Llama-3.1-8B-Instruct": SINGLE_CALLS,
    "meta-llama-Llama-3.3-70B-Instruct": SINGLE_CALLS,
    "Mistral-Small-3.2-24B-Instruct-2506": ALTERNATING,
    "mistralai-Mistral-Nemo-Instruct-2407": ALTERNATING,
}
NEVER_RENDERS = {"google-gemma-2-2b-it"}  # every recording begins with a system message

# These leave tool calls out of the prompt.
WITHOUT_CALLS = {"HuggingFaceTB-SmolLM3-3B", "LFM2-8B-A1B", "microsoft-Phi-3.5-mini-instruct"}


@cache
def recorded() -> list[Conversation]:
    """Return some requests of each trace: the first ones, one in the middle, the last."""
    spec = importlib.util.spec_from_file_location(
        "trace_format", SHARED / "traces" / "trace_format.py"
    )
    assert spec is not None
    assert spec.loader is not None
    trace_format: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(trace_format)
    conversations = []
    for path in sorted((SHARED / "traces").glob("*.jsonl")):
        bodies = [request["body"] for request in trace_format.load(path)]
        for i in sorted({0, 1, 2, len(bodies) // 2, len(bodies) - 1} & set(range(len(bodies)))):
            body = bodies[i]
            conversations.append(parse_conversation(body["messages"], body.get("tools")))
    return conversations


pytestmark = pytest.mark.skipif(not TEMPLATES, reason="no folder with recordings and templates")


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_recordings_render(path: Path) -> None:
    template = ChatTemplate(path.read_text(), name=path.stem, texts=SpecialTexts.of(FakeVocab()))
    num_rendered = 0
    for conversation in recorded():
        rendered, refusal = _render(template, conversation)
        if refusal:
            assert REFUSALS.get(path.stem, "rendering it") in refusal
        else:
            num_rendered += 1
            _check_prompt(path.stem, rendered, conversation)
    assert (num_rendered == 0) == (path.stem in NEVER_RENDERS)


def _render(template: ChatTemplate, conversation: Conversation) -> tuple[str, str]:
    """Return the prompt, or why there is none."""
    try:
        return template.render(conversation), ""
    except TemplateFailed as error:
        return "", str(error)


def _check_prompt(name: str, rendered: str, conversation: Conversation) -> None:
    """Check that the last user message, and each argument of the last tool call, is there."""
    texts = [m["content"].strip() for m in conversation.messages if m["role"] == "user"]
    assert texts[-1] in rendered
    calls = [call for m in conversation.messages for call in m.get("tool_calls", ())]
    if not calls or name in WITHOUT_CALLS:
        return
    for key, value in calls[-1]["function"]["arguments"].items():
        assert key in rendered
        assert f"'{key}': " not in rendered, "an object was printed as Python"
        if isinstance(value, str) and value.isprintable() and not set('"\\') & set(value):
            assert value in rendered

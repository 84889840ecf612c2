"""What is known of a reply before it is written: how to read it, and which tokens must be shown.

Made once per request, from the template, the rendered prompt and what the request asks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from milepost.chat.conversation.conversation import Conversation
from milepost.chat.conversation.rendered_prompt import RenderedPrompt
from milepost.chat.formats.reply_events import (
    ContentText,
    ParseWarning,
    ReasoningText,
    ReplyEvent,
)
from milepost.chat.formats.reply_format import ReasoningFormat, ReplyFormat
from milepost.chat.replies.stream_parser import ReplyParser
from milepost.chat.templates.template import ChatTemplate
from milepost.kinds import ReasoningPlace

MAX_GENERATION_CHARS = 4000  # of the end of a prompt that are searched; arbitrary
NUM_CONTENT_CHARS = 200  # of the end of a message that is looked for there; arbitrary


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyPlan:
    """How the replies to one prompt are read."""

    reply_format: ReplyFormat
    in_reasoning: bool = False  # the prompt ends inside a reasoning block
    tools: tuple[Mapping[str, Any], ...] = ()  # those that may be called
    repeats_reasoning: bool = False  # content has the reasoning too

    def make_parser(self) -> ReplyParser:
        """Return a parser for one reply."""
        make = RepeatingParser if self.repeats_reasoning else ReplyParser
        return make(self.reply_format, in_reasoning=self.in_reasoning, tools=self.tools)


class RepeatingParser(ReplyParser):
    """Adds reasoning, between its markers, to the content (`deepseek-legacy`)."""

    _is_open = False  # reasoning in the content

    def feed(self, text: str) -> list[ReplyEvent]:
        """Take more text; return what it makes certain."""
        return list(self._repeat(super().feed(text)))

    def finish(self, *, is_truncated: bool = False) -> list[ReplyEvent]:
        """Return the last events."""
        return list(self._repeat(super().finish(is_truncated=is_truncated)))

    def _repeat(self, events: Iterable[ReplyEvent]) -> Iterator[ReplyEvent]:
        reasoning = self._reasoning
        for event in events:
            if reasoning is not None and isinstance(event, ReasoningText):
                yield event
                yield ContentText(event.text if self._is_open else reasoning.start + event.text)
                self._is_open = True
                continue
            if self._is_open and reasoning is not None and not isinstance(event, ParseWarning):
                yield ContentText(reasoning.end)
                self._is_open = False
            yield event


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyOptions:
    """How a request wants its replies to be read."""

    reasoning: ReasoningPlace = "auto"
    parses_calls: bool = True
    parses_anything: bool = True


def plan_reply(
    reply_format: ReplyFormat,
    generation_part: str,
    tools: Iterable[Mapping[str, Any]],
    options: ReplyOptions,
) -> ReplyPlan:
    """Return the plan; `generation_part` is the end of the prompt that opens the reply."""
    if not options.parses_anything:
        return ReplyPlan(reply_format=ReplyFormat())
    reasoning = reply_format.reasoning
    if options.reasoning == "none":
        reply_format = replace(reply_format, reasoning=None)
    return ReplyPlan(
        reply_format=reply_format,
        in_reasoning=is_reasoning_open(generation_part, reasoning),
        tools=tuple(tools) if options.parses_calls else (),
        repeats_reasoning=options.reasoning == "deepseek-legacy",
    )


def is_reasoning_open(generation_part: str, reasoning: ReasoningFormat | None) -> bool:
    """Say whether the part of a prompt that opens the reply leaves a reasoning block open."""
    start = reasoning.start.strip() if reasoning is not None else ""
    if reasoning is None or not start:
        return False
    return generation_part.rfind(start) > generation_part.rfind(reasoning.end.strip())


def find_generation_part(
    prompt: RenderedPrompt, conversation: Conversation, template: ChatTemplate
) -> str:
    """Return what opens the reply in a prompt of which is not known where the last message ends.

    That is what stands after the last control token, but for those of reasoning, and after the
    last message, if that has none after it; "" where neither is found. Text of messages must not
    be taken for it: it may speak of reasoning.
    """
    reasoning = template.reply_format.reasoning
    if reasoning is None:
        return ""
    part = prompt.part(max(0, len(prompt.text) - MAX_GENERATION_CHARS))
    markers = f"{reasoning.start}\n{reasoning.end}"
    spans = template.controls.token_spans(part)
    start = max((end for first, end in spans if part.text[first:end] not in markers), default=-1)
    content = conversation.messages[-1]["content"].strip()[-NUM_CONTENT_CHARS:]
    is_unframed = content not in part.text[: max(start, 0)]
    if content and (is_unframed or reasoning.start.strip() in content):
        found = part.text.rfind(content, max(start, 0))
        start = found + len(content) if found >= 0 else start
    if start < 0 or any(mark > start for mark in part.marks):
        return ""
    return part.text[start:]


def find_shown_tokens(
    reply_format: ReplyFormat, *, has_tools: bool, controls: Mapping[str, int]
) -> tuple[int, ...]:
    """Return the control tokens, of all `controls` by their text, that markers are spelled with.

    Without tools, those of calls keep having no text, as all other control tokens.
    """
    calls = reply_format.tool_calls
    if calls is not None and not has_tools and not calls.body.reads_whole_reply:
        reply_format = replace(reply_format, tool_calls=None)
    markers = "\n\n".join(reply_format.markers)
    return tuple(sorted(token for text, token in controls.items() if text and text in markers))

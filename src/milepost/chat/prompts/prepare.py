"""From a conversation to its prompt, and to how the replies to it are read and held to account.

    Conversation, PromptOptions  ──>  PreparedPrompt

Each dialect of the API makes the two records of its own fields; what comes out goes to the engine
as it is, once the API has loaded the media. Runs on the event loop or on a thread: nothing here
waits.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from milepost.chat.conversation.conversation import Conversation, close_seams
from milepost.chat.conversation.media_parts import MediaPart
from milepost.chat.conversation.rendered_prompt import RenderedPrompt
from milepost.chat.formats.grammar_writer import SpecialTokens
from milepost.chat.formats.reply_format import ReplyFormat
from milepost.chat.prompts.boundaries import (
    BoundaryFinder,
    PromptBoundaries,
    find_generation_prompt,
)
from milepost.chat.prompts.reply_matching import (
    RepliesFound,
    ReplyCounts,
    ReplyMatcher,
    restore_reasoning,
)
from milepost.chat.prompts.tokenizer import PromptTokenizer
from milepost.chat.replies.reply_plan import (
    ReasoningOptions,
    ReplyOptions,
    ReplyPlan,
    ReplyRules,
    find_shown_tokens,
    is_reasoning_open,
    make_constraint,
    make_limit,
    plan_reply,
    reasoning_state,
)
from milepost.chat.replies.schema_check import GrammarChecker
from milepost.chat.reply_memory.reply_store import ReplyContext, ReplyStore, read_parsed
from milepost.chat.templates.template import TemplateSet
from milepost.chat.vocab import Vocab
from milepost.kinds import SYSTEM_ROLES
from milepost.lru import LruCache
from milepost.protocol.messages import Boundary, PromptInput, encode_tokens

MAX_SHOWN = 16  # templates whose shown tokens are remembered, with and without tools; arbitrary
MAX_HEADS = 256  # of conversations whose tools are remembered; arbitrary, some 100 bytes each


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOptions:
    """What a request, and where it says nothing the server, want of a prompt and of its replies."""

    variables: Mapping[str, Any] = field(default_factory=dict)  # for the template
    adds_generation_prompt: bool = True
    restores_reasoning: bool = False  # that was sampled here, where the client left it out
    reasoning: ReasoningOptions = field(default_factory=ReasoningOptions)
    reply: ReplyOptions = field(default_factory=ReplyOptions)
    rules: ReplyRules = field(default_factory=ReplyRules)
    has_grammar: bool = False  # another one than that of `rules` says what replies are


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPrompt:
    """A prompt, how the replies to it are read, and by what they are kept."""

    input: PromptInput  # without its media, which are yet to be loaded
    plan: ReplyPlan
    context: ReplyContext | None  # to keep replies by; None: it is not known what precedes them
    replies: RepliesFound  # those in the conversation
    media: tuple[MediaPart, ...]
    media_positions: tuple[int, ...]  # where they stand among the tokens


class PromptPreparer:
    """What prompts of one model are made with, and what is remembered of those that were made."""

    def __init__(self, templates: TemplateSet, vocab: Vocab, replies: ReplyStore) -> None:
        self.templates = templates
        self.grammars = GrammarChecker()
        self._vocab = vocab
        self._replies = replies
        self._boundaries = BoundaryFinder(templates, ReplyMatcher(replies, vocab))
        self._tokenizer = PromptTokenizer(vocab)
        self._tools = ToolsMemory()
        self._special_tokens = SpecialTokens.of(vocab)
        self._shown: LruCache[tuple[ReplyFormat, bool], tuple[int, ...]] = LruCache(MAX_SHOWN)

    @property
    def reply_counts(self) -> ReplyCounts:
        """What became of the replies in all conversations since the start."""
        return self._boundaries.reply_counts

    def forget_prompts(self) -> None:
        """Forget all prompts, which hold tokens of replies that came back."""
        self._boundaries.forget_conversations()
        self._tokenizer.forget_prompts()

    def render(self, conversation: Conversation, options: PromptOptions) -> RenderedPrompt:
        """Return the text that the chat template makes; raises TemplateFailed."""
        return self._render(self._restore(conversation, options), options)

    def prepare(self, conversation: Conversation, options: PromptOptions) -> PreparedPrompt:
        """Return the prompt of a conversation.

        Raises TemplateFailed when the template refuses it, and InvalidRequest for rules that
        replies cannot be held to.
        """
        epoch = self._replies.epoch
        conversation = self._restore(conversation, options)
        rendered = self._render(conversation, options)
        found = self._boundaries.find_boundaries(
            conversation,
            rendered,
            add_generation_prompt=options.adds_generation_prompt,
            kwargs=options.variables,
        )
        tokens, boundaries, media_positions = self._tokenise(rendered, found)
        generation_prompt = self._generation_prompt(rendered, found, conversation, options)
        template = self.templates.choose(conversation)
        plan = plan_reply(
            template.reply_format,
            generation_prompt,
            options.rules.choice.select(conversation.tools or ()),
            options.reply,
        )
        reasoning = template.reply_format.reasoning
        is_open = is_reasoning_open(generation_prompt, reasoning)
        prompt = PromptInput(
            tokens=encode_tokens(tokens),
            boundaries=boundaries,
            keeps_prompt_end=found.keeps_prompt_end,
            has_new_tools=self._tools.is_new(conversation),
            shown_tokens=self._shown_tokens(template.reply_format, conversation),
            constraint=self._constraint(template.reply_format, options, is_open=is_open),
            reasoning=make_limit(options.reasoning, reasoning, self._vocab, is_open=is_open),
        )
        return PreparedPrompt(
            input=prompt,
            plan=plan,
            context=_make_context(found, plan, epoch),
            replies=found.replies,
            media=conversation.media,
            media_positions=media_positions,
        )

    def _restore(self, conversation: Conversation, options: PromptOptions) -> Conversation:
        if self.templates.choose(conversation).profile.traits.runs_parts_together:
            conversation = close_seams(conversation)
        if not options.restores_reasoning:
            return conversation
        return restore_reasoning(conversation, self._replies)

    def _render(self, conversation: Conversation, options: PromptOptions) -> RenderedPrompt:
        return self.templates.render(
            conversation,
            add_generation_prompt=options.adds_generation_prompt,
            kwargs=dict(options.variables),
        )

    def _tokenise(
        self, rendered: RenderedPrompt, found: PromptBoundaries
    ) -> tuple[Sequence[int], tuple[Boundary, ...], tuple[int, ...]]:
        """Return the tokens of a prompt, its boundaries, and where among the tokens media stand."""
        exact = rendered.with_spans(found.replies.spans)
        media = [marker.end for marker in rendered.media]
        offsets = sorted({*media, *(boundary.offset for boundary in found.boundaries)})
        tokens, found_positions = self._tokenizer.tokenize_with_positions(exact, offsets)
        positions = dict(zip(offsets, found_positions, strict=True))
        boundaries = tuple(
            Boundary(
                positions[each.offset],
                each.kind,
                each.message_index,
                each.role,
                num_media=bisect_right(media, each.offset),
            )
            for each in found.boundaries
        )
        return tokens, boundaries, tuple(positions[end] for end in media)

    def _generation_prompt(
        self,
        rendered: RenderedPrompt,
        found: PromptBoundaries,
        conversation: Conversation,
        options: PromptOptions,
    ) -> str:
        """Return the end of the prompt that begins the reply, "" where there is none."""
        if found.generation_prompt is not None or not options.adds_generation_prompt:
            return found.generation_prompt or ""
        template = self.templates.choose(conversation)
        return find_generation_prompt(rendered, conversation, template)

    def _shown_tokens(
        self, reply_format: ReplyFormat, conversation: Conversation
    ) -> tuple[int, ...]:
        """Return the control tokens that are a part of the text of a reply."""
        has_tools = conversation.tools is not None
        shown = self._shown.get((reply_format, has_tools))
        if shown is None:
            controls = self._vocab.control_texts()
            shown = find_shown_tokens(reply_format, has_tools=has_tools, controls=controls)
            self._shown.put((reply_format, has_tools), shown)
        return shown

    def _constraint(
        self, reply_format: ReplyFormat, options: PromptOptions, *, is_open: bool
    ) -> str:
        """Return the grammar of replies, "" for none."""
        if options.has_grammar:
            return ""
        state = reasoning_state(options.variables, is_open=is_open)
        is_schema = options.rules.schema is not None
        if is_schema and options.reply.reasoning == "none" and state == "possible":
            state = "none"  # it would stand in the text
        return make_constraint(
            options.rules, reply_format, state, self._special_tokens, self.grammars
        )


class ToolsMemory:
    """Remembers with which tools each system prompt was last seen.

    The engine, which knows tokens only, cannot tell a change of the tools from one of the system
    prompt that they stand in. Filled by the threads that prepare requests.
    """

    def __init__(self) -> None:
        # Digest of the system messages -> of the tools.
        self._seen: LruCache[bytes, bytes] = LruCache(MAX_HEADS)

    def is_new(self, conversation: Conversation) -> bool:
        """Return whether the system messages were last seen with other tools, and note these."""
        heads = [each for each in conversation.messages if each["role"] in SYSTEM_ROLES]
        head, tools = _digest(heads), _digest(conversation.tools)
        last = self._seen.get(head)
        self._seen.put(head, tools)
        return last is not None and last != tools


def _make_context(found: PromptBoundaries, plan: ReplyPlan, epoch: int) -> ReplyContext | None:
    """Return how replies are kept; None where it is not known what they are sampled after."""
    if found.generation_prompt is None or not found.replies.history_keys:
        return None
    return ReplyContext(
        found.generation_prompt,
        found.replies.history_keys[-1],
        read_parsed(plan.make_parser),
        epoch,
    )


def _digest(value: object) -> bytes:
    text = json.dumps(value, default=repr)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()

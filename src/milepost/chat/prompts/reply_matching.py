"""Finds replies that were sampled here in the prompts of later requests, and gives them their
tokens back.

    …<|im_end|>\\n<|im_start|>assistant\\n{"a": 1, "b": 2}<|im_end|>\\n<|im_start|>user…
    end of message^ generation prompt     ^ span          ^ seam

A span is claimed only if all of this holds: a kept reply says what the message says; its generation
prompt stands right after the message before; the text up to the end of the turn says all that the
reply said, reasoning included; and what follows can be tokenised on its own. The text around spans
stays as the template wrote it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from typing import Literal

from milepost.chat.conversation.conversation import Conversation, Message, MessageSpan
from milepost.chat.conversation.rendered_prompt import ControlTexts, RenderedPrompt, TokenSpan
from milepost.chat.reply_memory.reply_meaning import (
    ReplyMeaning,
    history_keys_of,
    meaning_of_message,
)
from milepost.chat.reply_memory.reply_store import KeptReply, ReplyStore, WantedReply
from milepost.chat.templates.message_forms import short_id
from milepost.chat.vocab import Vocab

MAX_CONTROL_CHARS = 256  # of a control token's text; arbitrary

# What became of an assistant message:
ReplyOutcome = Literal[
    "exact",  # it has the tokens that were sampled
    "unknown",  # no reply that is kept says this
    "changed",  # another reply was sampled at this point
    "without_reasoning",  # the same, but for reasoning that the client has left out
    "written_differently",  # the template leaves something of it out, or opens it in another way
]


@dataclass(frozen=True, slots=True)
class MatchedReply:
    """What became of one assistant message of a prompt."""

    outcome: ReplyOutcome
    span: TokenSpan | None = None  # with "exact"


@dataclass(frozen=True, slots=True)
class ReplyCounts:
    """How many assistant messages there were of each outcome."""

    exact: int = 0
    unknown: int = 0
    changed: int = 0
    without_reasoning: int = 0
    written_differently: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(getattr(self, each.name) for each in fields(self))


@dataclass(frozen=True, slots=True)
class RepliesFound:
    """What became of the assistant messages of a prompt, and where a reply to it would stand."""

    replies: Mapping[int, MatchedReply]  # by index of the message
    history_keys: tuple[bytes, ...]  # of the conversation up to each message

    @property
    def spans(self) -> tuple[TokenSpan, ...]:
        """The tokens that are known, in the order of the prompt."""
        spans = (self.replies[i].span for i in sorted(self.replies))
        return tuple(span for span in spans if span is not None)

    @property
    def counts(self) -> ReplyCounts:
        """How many messages there are of each outcome."""
        return count_outcomes(reply.outcome for reply in self.replies.values())


NOTHING_FOUND = RepliesFound({}, ())


def count_outcomes(outcomes: Iterable[ReplyOutcome]) -> ReplyCounts:
    """Count outcomes."""
    counts: Counter[str] = Counter(outcomes)
    return ReplyCounts(**counts)


@dataclass(frozen=True, slots=True)
class PromptOutline:
    """Where the messages of a prompt stand, as far as that was found."""

    conversation: Conversation
    prompt: RenderedPrompt
    spans: Mapping[int, MessageSpan]
    ends: tuple[int, ...]  # of each message; -1 where not known
    trailer: str | None  # what the template writes after a reply; None: not known

    @property
    def text(self) -> str:
        """The text of the prompt."""
        return self.prompt.text


class ReplyMatcher:
    """Gives the replies in prompts of one vocabulary their tokens."""

    def __init__(self, store: ReplyStore, vocab: Vocab) -> None:
        self._store = store
        self._vocab = vocab
        self._outcomes: Counter[str] = Counter()  # two threads may lose one, rarely
        controls = vocab.control_texts()
        self._control_ids = frozenset(controls.values())
        ends = vocab.eog_tokens
        self._end_texts = tuple(text for text, token in controls.items() if token in ends)
        self._controls = ControlTexts(controls)
        # Some tokenizers put a space before each text, and would do so after a reply.
        plain = vocab.tokenize("a", add_special=False, parse_special=False)
        self._cuts_anywhere = b"".join(map(vocab.token_bytes, plain)) == b"a"

    @property
    def counts(self) -> ReplyCounts:
        """What became of replies when they came back first, since the start."""
        return ReplyCounts(**self._outcomes)

    def match_replies(
        self, outline: PromptOutline, known: RepliesFound, num_same: int, num_unmoved: int
    ) -> RepliesFound:
        """Return what is found in a prompt that shares `num_same` messages with a known one.

        The first `num_unmoved` of these also stand where they did; they keep what they have.
        """
        messages = outline.conversation.messages
        keys = history_keys_of(outline.conversation, known.history_keys[:num_same])
        replies = {i: reply for i, reply in known.replies.items() if i < num_unmoved}
        for i in range(num_unmoved, len(messages)):
            if messages[i]["role"] == "assistant":
                replies[i] = self._match_one(outline, i, keys[i - 1] if i else b"")
                if i >= num_same:
                    self._outcomes[replies[i].outcome] += 1
        return RepliesFound(replies, keys)

    def _match_one(self, outline: PromptOutline, index: int, history_key: bytes) -> MatchedReply:
        message = outline.conversation.messages[index]
        said = meaning_of_message(message)
        before = outline.ends[index - 1] if index else 0
        if self._store.has_meaning(said.digest):
            wanted = WantedReply(said.digest, history_key, tuple(_client_ids(message)))
            reply = self._store.find_reply(wanted, outline.text, before)
        else:
            reply = self._find_cut(said, history_key)
            if reply is None:
                return MatchedReply(self._why_unknown(said, history_key))
        if (
            reply is None
            or before < 0
            or not outline.text.startswith(reply.generation_prompt, before)
        ):
            return MatchedReply("written_differently")
        start = before + len(reply.generation_prompt)
        end = self._find_end(outline, index, reply, start)
        if not start <= end or not self._says_all(outline, index, start, end):
            return MatchedReply("written_differently")
        if _shows_other_ids(outline.text[start:end], reply.ids, _client_ids(message)):
            return MatchedReply("written_differently")
        return MatchedReply("exact", TokenSpan(start, end, reply.tokens))

    def _find_cut(self, said: ReplyMeaning, history_key: bytes) -> KeptReply | None:
        if said.calls or not said.content.strip():
            return None
        return self._store.find_cut(said.content.strip(), said.reasoning.strip(), history_key)

    def _why_unknown(self, said: ReplyMeaning, history_key: bytes) -> ReplyOutcome:
        if not self._store.has_history(history_key):
            return "unknown"
        left_out = not said.reasoning and self._store.has_reasoning(said.bare_digest, history_key)
        return "without_reasoning" if left_out else "changed"

    def _find_end(self, outline: PromptOutline, index: int, reply: KeptReply, start: int) -> int:
        """Return where the turn is ended after the text and the calls of a message; or -1."""
        text, end, trailer = outline.text, outline.ends[index], outline.trailer
        if end < 0:
            return self._search_end(outline, index, start)
        stop = len(text[:end].rstrip()) if text[end - 1 : end].isspace() else end
        is_marked = outline.prompt.is_marked
        for spelled in self._end_texts:
            text_end = stop - len(spelled)
            if text.endswith(spelled, 0, stop) and not is_marked(text_end, stop):
                return text_end
            # The beginning of a turn ends the one before.
            if text.startswith(spelled, end) and not is_marked(end, end + len(spelled)):
                return end
        if trailer and text.endswith(trailer, 0, end):
            stop = end - len(trailer)
        elif trailer == "" or self._ends_alike(reply, text[:stop]):
            stop = end
        else:
            return -1
        return stop if self._is_seam(outline.prompt, stop) else -1

    def _search_end(self, outline: PromptOutline, index: int, start: int) -> int:
        """Return where the turn that begins at `start` is ended, before the next message; or -1.

        For messages whose end is not known: templates number calls, for example.
        """
        following = outline.spans.get(index + 1)
        if following is None:
            return -1
        message = json.dumps(outline.conversation.messages[index], ensure_ascii=False)
        if any(spelled in message for spelled in self._end_texts):
            return -1  # the first one might be in the text of the message
        found = (outline.text.find(text, start, following.start) for text in self._end_texts)
        return min((end for end in found if end >= 0), default=-1)

    def _ends_alike(self, reply: KeptReply, text: str) -> bool:
        """Say whether a text ends with the control token that the reply ends with."""
        last = reply.tokens[-1]
        return last in self._control_ids and text.endswith(self._vocab.token_bytes(last).decode())

    def _is_seam(self, prompt: RenderedPrompt, offset: int) -> bool:
        """Say whether what is after the offset can be tokenised on its own."""
        if self._cuts_anywhere or offset == len(prompt.text):
            return True
        after = prompt.part(offset, offset + MAX_CONTROL_CHARS)
        return next(self._controls.token_spans(after), (1, 1))[0] == 0

    def _says_all(self, outline: PromptOutline, index: int, start: int, end: int) -> bool:
        """Say whether the text from `start` to `end` is the message, and nothing but that."""
        span, before = outline.spans.get(index), outline.spans.get(index - 1)
        if before is not None and start < before.end:
            return False
        if span is not None and not start <= span.start <= span.end <= end:
            return False
        written = _squeeze(outline.text[start:end])
        return all(
            _squeeze(said) in written or _squeeze(_escaped(said)) in written
            for said in _sayings(outline.conversation.messages[index])
        )


def restore_reasoning(conversation: Conversation, store: ReplyStore) -> Conversation:
    """Return the conversation with the reasoning of replies that were sampled in it.

    Only where a reply with the same content and calls was sampled at that very point of a
    conversation, and all such replies had the same reasoning. Whether it is shown is up to the
    template.
    """
    messages: list[Message] = []
    keys = (b"", *history_keys_of(conversation))  # before each message
    for message, key in zip(conversation.messages, keys, strict=False):
        reasoning = ""
        if message["role"] == "assistant" and not message.get("reasoning_content", "").strip():
            reasoning = store.find_reasoning(meaning_of_message(message).bare_digest, key)
        messages.append({**message, "reasoning_content": reasoning} if reasoning else message)
    return replace(conversation, messages=messages)


def _client_ids(message: Message) -> list[str]:
    """Return the ids of the calls of a message; "" where there is none."""
    return [call.get("id", "") for call in message.get("tool_calls", ())]


def _shows_other_ids(written: str, sampled: Iterable[str], sent: Iterable[str]) -> bool:
    """Say whether a rendering shows an id of a call that is not the one in the sampled tokens.

    The template shows the client's id with the result, too, or a short form of it: the model would
    see a result of a call that it has not made. An id that merely seems to be shown, as a short
    number may, costs time and nothing else.
    """
    for sampled_id, sent_id in zip_longest(sampled, sent, fillvalue=""):
        shown = {sent_id, short_id(sent_id)} - {"", sampled_id}
        if any(call_id in written or _escaped(call_id) in written for call_id in shown):
            return True
    return False


def _sayings(message: Message) -> Iterable[str]:
    """Yield what a rendering of an assistant message has to hold."""
    yield message.get("reasoning_content", "")
    yield message["content"]
    for call in message.get("tool_calls", ()):
        yield call["function"]["name"]


def _escaped(text: str) -> str:
    """Return the text as a part of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _squeeze(text: str) -> str:
    """Return the text without white space, of which templates make their own."""
    return "".join(text.split())

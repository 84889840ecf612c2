"""The text of a prompt, with all that a text alone would lose, and the guard of control tokens.

    text      …<|im_start|>assistant\\nI will look at it.<|im_end|>\\n<|im_start|>user…
    span                              └─ tokens ───────┘
    parts     ────────────────────────                  ──────────────────────────────

A span is a part whose tokens are known: a reply, with the tokens that the model sampled. What
stands between the spans is tokenised part by part. A part ends where a generation prompt ended, so
it gets the tokens that it had in the prompt after which the reply was sampled. The marker of an
image is a span without tokens.

Template text must be tokenised with its control tokens, message contents without them: otherwise
a file that an agent reads could end the turn and open a system message. That goes for replies too:
those that were sampled here have their tokens (`reply_matching`), all others may be anybody's text,
or a model's that wrote about control tokens. Only in the content of a reply the markers of
reasoning and calls stay what they are: clients that parse replies themselves send them back so.

Before a rendering, every spelled control token in untrusted text gets a mark, one sentinel, after
its first character; after it, the marks are taken out again and their places noted. A mark, unlike
a placeholder for the whole text, survives whatever a template does to strings (trim, split, JSON).

    content    see <|im_end|> here
    marked     see <▮|im_end|> here
    rendered   …user\\nsee <|im_end|> here<|im_end|>…      marks: the place after "see <"
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from milepost.chat.conversation.conversation import Conversation, Message
from milepost.chat.conversation.sentinels import (
    LAST_SENTINEL,
    MARKER_CHARS,
    choose_sentinel,
    strings_in,
    unescape_sentinel,
)

UNTRUSTED_FIELDS = ("content", "reasoning_content", "name", "tool_call_id")
GUARDED_FIELDS = (*UNTRUSTED_FIELDS, "tool_calls")


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """The text [start, end) of a prompt stands for these tokens, whatever it would be made into."""

    start: int
    end: int
    tokens: array[int]  # int32, never changed

    @property
    def is_media(self) -> bool:
        """Whether it is the marker of an image or audio."""
        return self.end > self.start and not self.tokens

    def moved(self, distance: int) -> TokenSpan:
        """Return the span so many characters further on."""
        return TokenSpan(self.start + distance, self.end + distance, self.tokens)


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """The text of a prompt, where in it no control token may be seen, and which tokens it has.

    A record and no `str`: what is cut out of a `str` has lost its marks, and then a message that
    spells a control token becomes one. Parts are taken with `part`, which keeps them; `text` is for
    looking at.
    """

    text: str
    marks: tuple[int, ...]  # rising offsets: control tokens spelled across one are plain text
    spans: tuple[TokenSpan, ...] = ()  # in rising order; they do not overlap

    @classmethod
    def of_trusted(cls, text: str) -> RenderedPrompt:
        """Return a prompt in which each control token that is spelled is one."""
        return cls(text, ())

    @property
    def media(self) -> tuple[TokenSpan, ...]:
        """The markers of images and audio."""
        return tuple(span for span in self.spans if span.is_media)

    def with_spans(self, spans: Iterable[TokenSpan]) -> RenderedPrompt:
        """Return the prompt with more spans."""
        merged = sorted((*self.spans, *spans), key=lambda span: span.start)
        return replace(self, spans=tuple(merged))

    def part(self, start: int, end: int | None = None) -> RenderedPrompt:
        """Return the prompt [start, end), with the marks inside and the spans that are whole.

        Without an end, all from `start` on. Offsets are not negative.
        """
        if end is None:
            end = len(self.text)
        marks = self.marks[bisect_right(self.marks, start) : bisect_left(self.marks, end)]
        first = bisect_left(self.spans, start, key=lambda span: span.start)
        stop = bisect_right(self.spans, end, key=lambda span: span.end)
        spans = tuple(span.moved(-start) for span in self.spans[first:stop])
        return RenderedPrompt(self.text[start:end], tuple(mark - start for mark in marks), spans)

    def is_marked(self, start: int, end: int) -> bool:
        """Say whether a control token that is spelled from `start` to `end` is plain text."""
        return bisect_right(self.marks, start) < bisect_left(self.marks, end)

    def parts_between_spans(self) -> Iterator[PartBetweenSpans]:
        """Yield what is tokenised, in order; some may be empty."""
        done = 0
        for span in self.spans:
            yield PartBetweenSpans(self.part(done, span.start), done, span)
            done = span.end
        yield PartBetweenSpans(self.part(done), done, None)

    def text_with_media_as(self, written: str) -> str:
        """Return the text with another one in place of each marker of media."""
        texts: list[str] = []
        done = 0
        for marker in self.media:
            texts += (self.text[done : marker.start], written)
            done = marker.end
        return "".join((*texts, self.text[done:]))


@dataclass(frozen=True, slots=True)
class PartBetweenSpans:
    """A part of a prompt without spans, and the span that follows on it, if any."""

    prompt: RenderedPrompt
    start: int  # in the whole prompt
    following: TokenSpan | None


@dataclass(frozen=True, slots=True)
class Run:
    """A part of a prompt; in one that is not `parse_special`, control tokens are plain text."""

    text: str
    parse_special: bool


class ControlTexts:
    """How the control tokens of a vocabulary are spelled."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        # One character cannot be marked inside, and is no markup that text would imitate.
        self.spelled = sorted({text for text in texts if len(text) > 1})
        self._pattern = re.compile(_trie_pattern(self.spelled)) if self.spelled else None

    def mark_control_texts(
        self, conversation: Conversation, find_markers: Callable[[], Container[str]] = frozenset
    ) -> tuple[Conversation, str]:
        """Return the conversation with marks in its untrusted text, and the mark.

        The mark is "" and the conversation the same object when nothing had to be marked.
        `find_markers` returns the control texts that are trusted in the content of replies.
        """
        if self._pattern is None or not self._is_spelled_in(conversation):
            return conversation, ""
        parts = (conversation.messages, conversation.tools, conversation.documents)
        # Somebody may have written all of them; the last one then loses its meaning in their text.
        mark = choose_sentinel(*parts) or chr(LAST_SENTINEL)
        markers = find_markers()
        marked = replace(
            conversation,
            messages=[self._mark_message(each, mark, markers) for each in conversation.messages],
            tools=self._mark_value(conversation.tools, mark),
            documents=self._mark_value(conversation.documents, mark),
            argument_texts=self._mark_value(dict(conversation.argument_texts), mark),
        )
        return marked, mark

    def find_in(self, texts: Iterable[str]) -> frozenset[str]:
        """Return the control texts that are spelled in any of the texts."""
        if self._pattern is None:
            return frozenset()
        return frozenset(match[0] for text in texts for match in self._pattern.finditer(text))

    def cut_at_marks(self, prompt: RenderedPrompt) -> Iterator[Run]:
        """Cut a prompt into runs that together are its text.

        Plain runs reach from one real control token to the next, because tokenizers treat the
        start of a text like the place after a control token (some put a space there), and merge
        nothing across one. So the tokens of the rest of the prompt do not depend on the cuts.
        """
        done = 0
        for start, end in self._plain_spans(prompt):
            if start > done:
                yield Run(prompt.text[done:start], parse_special=True)
            yield Run(prompt.text[start:end], parse_special=False)
            done = end
        if done < len(prompt.text):
            yield Run(prompt.text[done:], parse_special=True)

    def token_spans(self, prompt: RenderedPrompt) -> Iterator[tuple[int, int]]:
        """Yield where control tokens are spelled that no mark cuts."""
        if self._pattern is None:
            return
        marks = set(prompt.marks)
        for match in self._pattern.finditer(prompt.text):
            if not marks or marks.isdisjoint(range(match.start() + 1, match.end())):
                yield match.span()

    def seam_before(self, prompt: RenderedPrompt, offset: int, max_chars: int) -> int:
        """Return the end of the last control token before an offset, if it is that close.

        Otherwise the offset itself, as where a control token begins: nothing is merged there.
        """
        seam = offset
        for start, end in self.token_spans(prompt):
            if start >= offset:
                return offset if start == offset else seam
            if offset - max_chars <= end <= offset:
                seam = end
        return seam

    def _plain_spans(self, prompt: RenderedPrompt) -> Iterator[tuple[int, int]]:
        marks = iter(prompt.marks)
        mark = next(marks, None)
        start = 0
        for token_start, token_end in self.token_spans(prompt):
            if mark is None:
                return
            if mark <= token_start:
                yield start, token_start
                while mark is not None and mark <= token_start:
                    mark = next(marks, None)
            start = token_end
        if mark is not None:
            yield start, len(prompt.text)

    def _is_spelled_in(self, conversation: Conversation) -> bool:
        assert self._pattern is not None
        search = self._pattern.search
        for i, message in enumerate(conversation.messages):
            if any(search(message[key]) for key in UNTRUSTED_FIELDS if key in message):
                return True
            if "tool_calls" in message and any(map(search, _call_strings(conversation, i))):
                return True
        others = (conversation.tools, conversation.documents)
        return any(map(search, strings_in(others)))

    def _mark_message(self, message: Message, mark: str, markers: Container[str]) -> Message:
        trusted = markers if message["role"] == "assistant" else ()
        return {
            key: self._mark_value(value, mark, trusted if key == "content" else ())
            if key in GUARDED_FIELDS
            else value
            for key, value in message.items()
        }

    def _mark_value(self, value: Any, mark: str, trusted: Container[str] = ()) -> Any:
        if isinstance(value, str):
            assert self._pattern is not None
            return self._pattern.sub(
                lambda match: match[0] if match[0] in trusted else _insert(match[0], mark), value
            )
        if isinstance(value, list):
            return [self._mark_value(item, mark) for item in value]
        if isinstance(value, dict):
            return {
                self._mark_value(key, mark): self._mark_value(item, mark)
                for key, item in value.items()
            }
        return value


def unmark_control_texts(rendered: str, mark: str) -> RenderedPrompt:
    """Take the marks out of a rendered text and note where they were."""
    if not mark:
        return RenderedPrompt.of_trusted(rendered)
    texts = unescape_sentinel(rendered, mark).split(mark)
    marks = tuple(accumulate(len(text) for text in texts[:-1]))
    return RenderedPrompt("".join(texts), marks)


def media_span(start: int) -> TokenSpan:
    """Return the span of an image's marker, which has no tokens here."""
    return TokenSpan(start, start + MARKER_CHARS, array("i"))


def first_difference(one: Sequence[TokenSpan], other: Sequence[TokenSpan]) -> int | None:
    """Return where the first span begins that only one of two prompts has; None: there is none."""
    for mine, theirs in zip(one, other, strict=False):
        if mine is not theirs and mine != theirs:
            return min(mine.start, theirs.start)
    num_shared = min(len(one), len(other))
    rest = one[num_shared:] or other[num_shared:]
    return rest[0].start if rest else None


def common_prefix(one: str, other: str) -> int:
    """Return how many characters both texts have in common at their start."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:  # one[:low] agrees, one[:high] does not
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


def common_suffix(one: str, other: str) -> int:
    """Return how many characters both texts have in common at their end."""
    low, high = 0, min(len(one), len(other))
    if one[len(one) - high :] == other[len(other) - high :]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if one[len(one) - middle : len(one) - low] == other[len(other) - middle : len(other) - low]:
            low = middle
        else:
            high = middle
    return low


def _call_strings(conversation: Conversation, index: int) -> Iterator[str]:
    """Yield all strings in the tool calls of a message; the JSON text where that has no escapes."""
    for j, call in enumerate(conversation.messages[index]["tool_calls"]):
        text = conversation.argument_texts.get((index, j), "\\")
        yield from (text,) if "\\" not in text else strings_in(call["function"]["arguments"])
        yield call["function"]["name"]
        yield call.get("id", "")


def _insert(spelled: str, mark: str) -> str:
    return f"{spelled[0]}{mark}{spelled[1:]}"


def _trie_pattern(texts: list[str]) -> str:
    """Return a pattern for any of the texts, the longest where several fit.

    `texts` are sorted and unique. Vocabularies have up to a thousand control tokens with the same
    first characters, and a flat alternation tries each of them at every such character.
    """
    branches: list[str] = []
    is_optional = False
    start = 0
    while start < len(texts):
        if not texts[start]:
            is_optional = True
            start += 1
            continue
        first = texts[start][0]
        end = start
        while end < len(texts) and texts[end][:1] == first:
            end += 1
        branches.append(re.escape(first) + _trie_pattern([text[1:] for text in texts[start:end]]))
        start = end
    if not branches:
        return ""
    pattern = branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
    return f"(?:{pattern})?" if is_optional else pattern

"""The text of a prompt, with all that a text alone would lose.

    text      …<|im_start|>assistant\\nI will look at it.<|im_end|>\\n<|im_start|>user…
    span                              └─ tokens ───────┘
    parts     ────────────────────────                  ──────────────────────────────

A span is a part whose tokens are known: a reply, with the tokens that the model sampled. What
stands between the spans is tokenised part by part. A part ends where a generation prompt ended, so
it gets the tokens that it had in the prompt after which the reply was sampled. The marker of an
image is a span without tokens.

To find where messages stand, the conversation is rendered once more with a mark (`sentinels`)
before and after the text of each; the marks are taken out again and their places noted. A mark is
inside of surrounding white space, which templates trim, and carries the number of its message,
because templates leave texts out and move them. Whether marks changed what a template does shows in
the comparison with the real prompt: spans count only where the texts agree.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from milepost.chat.conversation.conversation import Conversation, Message
from milepost.chat.conversation.sentinels import MARKER_CHARS, find_markers, write_marker

MARKED_FIELDS = ("reasoning_content", "content")  # of messages, which are found by them


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
class MessageSpan:
    """Where a message's own text stands: from its first to its last character, without frame."""

    start: int
    end: int


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


def mark_messages(conversation: Conversation, sentinel: str, first: int = 0) -> Conversation:
    """Return the conversation with marks around the texts of its messages from `first` on."""
    messages = [
        _mark_message(message, write_marker(sentinel, i)) if i >= first else message
        for i, message in enumerate(conversation.messages)
    ]
    return replace(conversation, messages=messages)


def take_marks_out(marked: str, sentinel: str) -> tuple[str, dict[int, MessageSpan]]:
    """Return the text without marks, and where the messages stand in it, by index.

    What a template has put out of order is left out, so the spans do not overlap.
    """
    texts: list[str] = []
    spans: dict[int, MessageSpan] = {}
    pos = done = 0
    for mark in find_markers(marked, sentinel):
        texts.append(marked[done : mark.start])
        pos += mark.start - done
        done = mark.end
        start = spans[mark.number].start if mark.number in spans else pos
        spans[mark.number] = MessageSpan(start, pos)
    texts.append(marked[done:])
    text = "".join(texts)
    return text, _in_order(spans, len(text))


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


def _mark_message(message: Message, mark: str) -> Message:
    marked = message.copy()
    for key in MARKED_FIELDS:
        text = message.get(key, "")
        body = text.strip()
        if body:  # a text that was empty would no longer be
            start = text.index(body)
            end = start + len(body)
            marked[key] = f"{text[:start]}{mark}{body}{mark}{text[end:]}"
    return marked


def _in_order(spans: dict[int, MessageSpan], limit: int) -> dict[int, MessageSpan]:
    """Drop spans that begin after the next message: some templates move the system message."""
    kept: dict[int, MessageSpan] = {}
    for index in sorted(spans, reverse=True):
        if spans[index].end <= limit:
            kept[index] = spans[index]
            limit = spans[index].start
    return kept

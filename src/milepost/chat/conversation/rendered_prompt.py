"""Parts of a prompt whose tokens are known: replies, with the tokens that the model sampled.

    text      …<|im_start|>assistant\\nI will look at it.<|im_end|>\\n<|im_start|>user…
    span                              └─ tokens ───────┘
    pieces    ────────────────────────                  ──────────────────────────────

What stands between the spans is tokenised piece by piece. A piece ends where a generation prompt
ended, so it gets the tokens that it had in the prompt behind which the reply was sampled. The
marker of an image is a span without tokens.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from milepost.chat.conversation.media_parts import MARKER_CHARS


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """The text [start, end) of a prompt stands for these tokens, whatever it would be made into."""

    start: int
    end: int
    tokens: array[int]  # never changed

    @property
    def is_media(self) -> bool:
        """Whether it is the marker of an image or audio."""
        return self.end > self.start and not self.tokens

    def moved(self, distance: int) -> TokenSpan:
        """Return the span so many characters further on."""
        return TokenSpan(self.start + distance, self.end + distance, self.tokens)


class RenderedPrompt(str):
    """The text of a prompt that knows where no control token may be seen, and which tokens it has.

    `marks` are offsets in rising order: a control token that is spelled across one of them is
    plain text. `spans` are in rising order too, and do not overlap.
    """

    __slots__ = ("marks", "spans")
    marks: tuple[int, ...]
    spans: tuple[TokenSpan, ...]

    def __new__(
        cls, text: str, marks: tuple[int, ...] = (), spans: tuple[TokenSpan, ...] = ()
    ) -> RenderedPrompt:
        """Make a prompt of `text`."""
        prompt = super().__new__(cls, text)
        prompt.marks = marks
        prompt.spans = spans
        return prompt

    @property
    def media(self) -> tuple[TokenSpan, ...]:
        """The markers of images and audio."""
        return tuple(span for span in self.spans if span.is_media)

    def with_spans(self, spans: Iterable[TokenSpan]) -> RenderedPrompt:
        """Return the prompt with more spans."""
        merged = sorted((*self.spans, *spans), key=lambda span: span.start)
        return RenderedPrompt(self, self.marks, tuple(merged))

    def part(self, start: int, end: int) -> RenderedPrompt:
        """Return the prompt [start, end), with the marks inside and the spans that are whole."""
        marks = self.marks[bisect_right(self.marks, start) : bisect_left(self.marks, end)]
        spans = tuple(
            span.moved(-start) for span in self.spans if start <= span.start and span.end <= end
        )
        return RenderedPrompt(self[start:end], tuple(mark - start for mark in marks), spans)


def media_span(start: int) -> TokenSpan:
    """Return the span of an image's marker, which has no tokens here."""
    return TokenSpan(start, start + MARKER_CHARS, array("i"))


@dataclass(frozen=True, slots=True)
class Piece:
    """The text [start, end) of a prompt that is tokenised, and the span behind it, if any."""

    start: int
    end: int
    following: TokenSpan | None


def cut_at_spans(spans: Sequence[TokenSpan], num_chars: int) -> Iterator[Piece]:
    """Yield the pieces of a prompt; some may be empty."""
    done = 0
    for span in spans:
        yield Piece(done, span.start, span)
        done = span.end
    yield Piece(done, num_chars, None)


def first_difference(one: Sequence[TokenSpan], other: Sequence[TokenSpan]) -> int | None:
    """Return where the first span begins that only one of two prompts has; None: there is none."""
    for mine, theirs in zip(one, other, strict=False):
        if mine is not theirs and mine != theirs:
            return min(mine.start, theirs.start)
    num_shared = min(len(one), len(other))
    rest = one[num_shared:] or other[num_shared:]
    return rest[0].start if rest else None


def spell_markers(prompt: RenderedPrompt, spelled: str) -> str:
    """Return the text of a prompt with another text in place of each marker of media."""
    pieces: list[str] = []
    done = 0
    for marker in prompt.media:
        pieces += (prompt[done : marker.start], spelled)
        done = marker.end
    return "".join((*pieces, prompt[done:]))

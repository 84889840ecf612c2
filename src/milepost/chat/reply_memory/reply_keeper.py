"""Keeps what was sampled for a chat request, so that it is known when the client sends it back."""

from __future__ import annotations

import codecs
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from milepost.chat.formats.reply_events import CallStart, ContentText, ReplyEvent
from milepost.chat.replies.stream_parser import ReplyParser
from milepost.chat.reply_memory.reply_meaning import ReplyMeaning, meaning_of_events
from milepost.chat.reply_memory.reply_store import CutReply, KeptReply, ReplyStore
from milepost.chat.vocab import Vocab

# Reads the text of a reply, and whether it broke off.
ReadReply = Callable[[str, bool], Iterable[ReplyEvent]]


def read_plain(text: str, is_truncated: bool) -> Iterable[ReplyEvent]:
    """Read a reply as nothing but content, as clients get it that parse it themselves."""
    return [ContentText(text)] if text else []


def read_parsed(make_parser: Callable[[], ReplyParser]) -> ReadReply:
    """Return a reader that reads as these parsers do; there is a new one for each reply."""

    def read(text: str, is_truncated: bool) -> Iterable[ReplyEvent]:
        parser = make_parser()
        return [*parser.feed(text), *parser.finish(is_truncated=is_truncated)]

    return read


@dataclass(frozen=True, slots=True)
class ReplyContext:
    """What has to be known of a prompt to keep the replies to it."""

    opening: str  # the generation prompt
    place: bytes  # `reply_meaning.place_after` its last message
    read: ReadReply = read_plain  # must find what the client is shown
    num_clears: int = 0  # `ReplyStore.num_clears` when the prompt was made


@dataclass(slots=True)
class SampledReply:
    """What has come of one choice so far."""

    tokens: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)  # of the texts, in characters
    num_chars: int = 0
    is_complete: bool = False  # the model has ended it

    def add(self, text: str, tokens: Iterable[int]) -> None:
        """Take what is new."""
        self.tokens.extend(tokens)
        if text:
            self.texts.append(text)
            self.num_chars += len(text)
            self.ends.append(self.num_chars)


class ReplyKeeper:
    """Puts replies into the store."""

    def __init__(self, store: ReplyStore, vocab: Vocab) -> None:
        self._store = store
        self._vocab = vocab

    def keep(
        self, context: ReplyContext, sampled: SampledReply, is_shown: Callable[[int], bool]
    ) -> None:
        """Keep a reply, complete or as far as it came.

        `is_shown` says of a control token whether its text is in the text of the reply.
        """
        text = "".join(sampled.texts)
        pieces = self._pieces(sampled.tokens, is_shown)
        tokens = sampled.tokens[: _count_tokens(pieces, text)]
        events = list(context.read(text, not sampled.is_complete))
        meaning = meaning_of_events(events)
        says_something = meaning.content.strip() or meaning.reasoning.strip() or meaning.calls
        if not tokens or not says_something:
            return
        self._store.add(
            KeptReply(
                tokens=array("i", tokens),
                opening=context.opening,
                meaning=meaning.digest,
                bare=meaning.bare_digest,
                place=context.place,
                reasoning=meaning.reasoning,
                ids=_written_ids(events, text),
                cut=None if sampled.is_complete else _find_cut(sampled, pieces, meaning),
            ),
            context.num_clears,
        )

    def _pieces(self, tokens: Sequence[int], is_shown: Callable[[int], bool]) -> list[bytes]:
        """Return what each token adds to the text of a reply."""
        is_control = self._vocab.is_control
        hidden = {token for token in set(tokens) if is_control(token) and not is_shown(token)}
        return [b"" if token in hidden else self._vocab.piece(token) for token in tokens]


def _written_ids(events: Iterable[ReplyEvent], text: str) -> tuple[str, ...]:
    """Return the ids of calls; "" for one that is not in the text, but was made up."""
    ids = (event.call_id for event in events if isinstance(event, CallStart))
    return tuple(call_id if call_id in text else "" for call_id in ids)


def _count_tokens(pieces: Sequence[bytes], text: str) -> int:
    """Return how many of the tokens together are just this text; 0 if they never are.

    Behind it there may be a part of a character, or of a stop string, that nobody saw.
    """
    if b"".join(pieces).decode("utf-8", "replace") == text:  # nearly always
        return len(pieces)
    whole = [count for end, count in _whole_beginnings(pieces, text) if end == len(text)]
    return whole[-1] if whole else 0


def _whole_beginnings(pieces: Sequence[bytes], text: str) -> Iterator[tuple[int, int]]:
    """Yield (characters, tokens) wherever the tokens so far are a beginning of the text."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    num_chars = 0
    for i, piece in enumerate(pieces):
        new = decoder.decode(piece)
        if not text.startswith(new, num_chars):
            return
        num_chars += len(new)
        if not decoder.getstate()[0]:
            yield num_chars, i + 1


def _find_cut(
    sampled: SampledReply, pieces: Sequence[bytes], meaning: ReplyMeaning
) -> CutReply | None:
    """Return where else a client may have stopped to read a reply that broke off in its text.

    An increment of the text may come with more tokens than are in it: the engine holds back what
    may become a stop string, and parts of a character.
    """
    text = "".join(sampled.texts)
    if meaning.calls or not text.endswith(meaning.content):
        return None
    start = len(text) - len(meaning.content)
    shown = [end for end in sampled.ends if end > start]
    counts: dict[int, int] = {}  # by characters, the fewest tokens
    for num_chars, count in _whole_beginnings(pieces, text):
        counts.setdefault(num_chars, count)
    ends = ((end - start, counts[end]) for end in shown if end in counts)
    return CutReply(meaning.content, tuple(ends))

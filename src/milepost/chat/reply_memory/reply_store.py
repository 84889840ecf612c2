"""The replies that were sampled here lately, each with its exact tokens.

Text is not enough to get these tokens again: models sample other tokens than a tokenizer makes of
the same text, and templates write tool calls in their own way. `reply_matching` looks replies up
when a client sends them back; `ReplyKeeper` puts them here when they have ended.
"""

from __future__ import annotations

import codecs
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from milepost.chat.formats.reply_events import CallStart, ContentText, ReplyEvent
from milepost.chat.replies.stream_parser import ReplyParser
from milepost.chat.reply_memory.reply_meaning import ReplyMeaning, meaning_of_events
from milepost.chat.vocab import Vocab
from milepost.lru import LruCache

MAX_BYTES = 64 << 20  # arbitrary: some ten million tokens, and their reasoning
END_BYTES = 120  # two numbers in a tuple
MAX_TRIMMED_CHARS = 64  # of white space that a client may have trimmed; arbitrary
OVERHEAD_BYTES = 400  # of a reply, besides tokens and texts; roughly measured

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
class CutReply:
    """A reply that was not ended by the model: its client may have got less of it."""

    content: str
    ends: tuple[tuple[int, int], ...]  # of its increments: characters of the content, tokens


@dataclass(frozen=True, slots=True)
class KeptReply:
    """A reply of the model; what it says is known by digests only, but for its reasoning."""

    tokens: array[int]  # without the one that ended it; never changed
    generation_prompt: str  # that it was sampled after
    meaning: bytes  # `ReplyMeaning.digest`
    bare: bytes  # `ReplyMeaning.bare_digest`
    history_key: bytes  # of the conversation before it
    reasoning: str = ""
    ids: tuple[str, ...] = ()  # of its calls, as the model wrote them; "" where it wrote none
    cut: CutReply | None = field(default=None, compare=False)  # not kept on disk

    @property
    def num_bytes(self) -> int:
        """About how much memory it takes."""
        texts = len(self.generation_prompt) + 2 * len(self.reasoning) + sum(map(len, self.ids))
        if self.cut is not None:
            texts += 2 * len(self.cut.content) + END_BYTES * len(self.cut.ends)
        return self.tokens.itemsize * len(self.tokens) + texts + OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class WantedReply:
    """What a reply has to say, and which one is the best of those that do."""

    meaning: bytes  # `ReplyMeaning.digest`
    history_key: bytes  # of the conversation before it
    ids: tuple[str, ...] = ()  # of its calls


class ReplyStore:
    """Sampled replies by what they say; those that were not used for longest go first.

    The event loop adds replies while a thread prepares requests, so a lock is held for each of
    these short operations.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._replies: LruCache[int, KeptReply] = LruCache(
            max_size=max_bytes, size_of=lambda _, reply: reply.num_bytes
        )
        self._next_number = 0
        # Numbers of replies, the oldest first.
        self._by_meaning: dict[bytes, list[int]] = {}
        self._by_bare: dict[bytes, list[int]] = {}
        self._by_history: dict[bytes, list[int]] = {}
        self._lock = threading.Lock()
        self.epoch = 0  # how often everything was forgotten
        self.on_add: Callable[[KeptReply], None] | None = None  # must not block

    def __len__(self) -> int:
        return len(self._replies)

    @property
    def num_bytes(self) -> int:
        """About how much memory the replies take."""
        return self._replies.size

    def replies(self) -> tuple[KeptReply, ...]:
        """Return all replies, those that were used last at the end."""
        with self._lock:
            return tuple(self._replies.values())

    def add_reply(self, reply: KeptReply, epoch: int | None = None) -> None:
        """Keep a reply; does nothing if it is known.

        With `epoch`, which it was when the reply was begun, only if it still is.
        """
        with self._lock:
            if epoch not in (None, self.epoch):
                return
            for number in self._by_meaning.get(reply.meaning, ()):
                if self._replies.peek(number) == reply:
                    self._replies.get(number)
                    return
            self._add(reply)
        if self.on_add is not None:
            self.on_add(reply)

    def forget_all(self) -> None:
        """Forget all replies, and those to come that were begun before."""
        with self._lock:
            self.epoch += 1
            self._replies.clear()
            for index in (self._by_meaning, self._by_bare, self._by_history):
                index.clear()

    def forget_histories(self, history_keys: Iterable[bytes]) -> None:
        """Forget what was sampled after these beginnings of conversations."""
        with self._lock:
            for history_key in history_keys:
                for number in tuple(self._by_history.get(history_key, ())):
                    self._forget(number)

    def find_reply(self, wanted: WantedReply, text: str, offset: int) -> KeptReply | None:
        """Return a reply that says this, whose generation prompt stands in `text` at `offset`.

        One with the same ids of calls, if there is any. Of those the one that was sampled at this
        very point of a conversation, or else the oldest: that stays the same while others come.
        """
        with self._lock:
            found = [
                number
                for number in self._by_meaning.get(wanted.meaning, ())
                if text.startswith(self._replies.peek(number).generation_prompt, offset)
            ]
            same = [number for number in found if self._replies.peek(number).ids == wanted.ids]
            return self._choose(same or found, wanted.history_key)

    def find_cut(self, content: str, reasoning: str, history_key: bytes) -> KeptReply | None:
        """Return the beginning of a reply at this point that was cut off; content is trimmed."""
        with self._lock:
            replies = [
                self._replies.peek(number) for number in self._by_history.get(history_key, ())
            ]
        for reply in reversed(replies):
            if reply.cut is not None and reply.reasoning.strip() == reasoning:
                num_tokens = _count_cut_tokens(reply.cut, content)
                if num_tokens:
                    return replace(reply, tokens=reply.tokens[:num_tokens], cut=None)
        return None

    def find_reasoning(self, bare: bytes, history_key: bytes) -> str:
        """Return the reasoning of a reply that said this at this point; "" if that is not clear."""
        with self._lock:
            found = self._reasonings(bare, history_key)
        return found.pop() if len(found) == 1 else ""

    def has_reasoning(self, bare: bytes, history_key: bytes) -> bool:
        """Say whether a reply that said this at this point had reasoning."""
        with self._lock:
            return any(self._reasonings(bare, history_key))

    def has_history(self, history_key: bytes) -> bool:
        """Say whether any reply was sampled at this point of a conversation."""
        return history_key in self._by_history

    def has_meaning(self, meaning: bytes) -> bool:
        """Say whether any reply says this."""
        return meaning in self._by_meaning

    def _choose(self, numbers: list[int], history_key: bytes) -> KeptReply | None:
        here = [
            number for number in numbers if self._replies.peek(number).history_key == history_key
        ]
        # The latest at this point: of an answer that was asked for again, the last one went on.
        number = here[-1] if here else numbers[0] if numbers else None
        return None if number is None else self._replies.get(number)

    def _reasonings(self, bare: bytes, history_key: bytes) -> set[str]:
        replies = (self._replies.peek(number) for number in self._by_bare.get(bare, ()))
        return {reply.reasoning for reply in replies if reply.history_key == history_key}

    def _add(self, reply: KeptReply) -> None:
        number = self._next_number
        self._next_number += 1
        for index, key in self._indices(reply):
            index.setdefault(key, []).append(number)
        for evicted in self._replies.put(number, reply):
            self._remove_from_indices(*evicted)

    def _forget(self, number: int) -> None:
        reply = self._replies.pop(number)
        assert reply is not None, "the indices hold what is here"
        self._remove_from_indices(number, reply)

    def _remove_from_indices(self, number: int, reply: KeptReply) -> None:
        for index, key in self._indices(reply):
            index[key].remove(number)
            if not index[key]:
                del index[key]

    def _indices(self, reply: KeptReply) -> tuple[tuple[dict[bytes, list[int]], bytes], ...]:
        return (
            (self._by_meaning, reply.meaning),
            (self._by_bare, reply.bare),
            (self._by_history, reply.history_key),
        )


@dataclass(frozen=True, slots=True)
class ReplyContext:
    """What has to be known of a prompt to keep the replies to it."""

    generation_prompt: str
    history_key: bytes  # of the conversation, up to its last message
    read: ReadReply = read_plain  # must find what the client is shown
    epoch: int = 0  # `ReplyStore.epoch` when the prompt was made


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

    def keep_reply(
        self, context: ReplyContext, sampled: SampledReply, is_shown: Callable[[int], bool]
    ) -> None:
        """Keep a reply, complete or as far as it came.

        `is_shown` says of a control token whether its text is in the text of the reply.
        """
        text = "".join(sampled.texts)
        bytes_by_token = self._bytes_of(sampled.tokens, is_shown)
        tokens = sampled.tokens[: _count_tokens(bytes_by_token, text)]
        events = list(context.read(text, not sampled.is_complete))
        meaning = meaning_of_events(events)
        says_something = meaning.content.strip() or meaning.reasoning.strip() or meaning.calls
        if not tokens or not says_something:
            return
        self._store.add_reply(
            KeptReply(
                tokens=array("i", tokens),
                generation_prompt=context.generation_prompt,
                meaning=meaning.digest,
                bare=meaning.bare_digest,
                history_key=context.history_key,
                reasoning=meaning.reasoning,
                ids=_written_ids(events, text),
                cut=None if sampled.is_complete else _make_cut(sampled, bytes_by_token, meaning),
            ),
            context.epoch,
        )

    def _bytes_of(self, tokens: Sequence[int], is_shown: Callable[[int], bool]) -> list[bytes]:
        """Return what each token adds to the text of a reply."""
        is_control = self._vocab.is_control
        hidden = {token for token in set(tokens) if is_control(token) and not is_shown(token)}
        return [b"" if token in hidden else self._vocab.token_bytes(token) for token in tokens]


def _written_ids(events: Iterable[ReplyEvent], text: str) -> tuple[str, ...]:
    """Return the ids of calls; "" for one that is not in the text, but was made up."""
    ids = (event.call_id for event in events if isinstance(event, CallStart))
    return tuple(call_id if call_id in text else "" for call_id in ids)


def _count_tokens(bytes_by_token: Sequence[bytes], text: str) -> int:
    """Return how many of the tokens together are just this text; 0 if they never are.

    After it there may be a part of a character, or of a stop string, that nobody saw.
    """
    if b"".join(bytes_by_token).decode("utf-8", "replace") == text:  # nearly always
        return len(bytes_by_token)
    whole = [count for end, count in _whole_beginnings(bytes_by_token, text) if end == len(text)]
    return whole[-1] if whole else 0


def _whole_beginnings(bytes_by_token: Sequence[bytes], text: str) -> Iterator[tuple[int, int]]:
    """Yield (characters, tokens) wherever the tokens so far are a beginning of the text."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    num_chars = 0
    for i, token_bytes in enumerate(bytes_by_token):
        new = decoder.decode(token_bytes)
        if not text.startswith(new, num_chars):
            return
        num_chars += len(new)
        if not decoder.getstate()[0]:
            yield num_chars, i + 1


def _make_cut(
    sampled: SampledReply, bytes_by_token: Sequence[bytes], meaning: ReplyMeaning
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
    for num_chars, count in _whole_beginnings(bytes_by_token, text):
        counts.setdefault(num_chars, count)
    ends = ((end - start, counts[end]) for end in shown if end in counts)
    return CutReply(meaning.content, tuple(ends))


def _count_cut_tokens(cut: CutReply, content: str) -> int:
    """Return how many tokens have this trimmed text; 0 if it does not end with an increment."""
    for num_chars, num_tokens in cut.ends:
        if num_chars > len(content) + MAX_TRIMMED_CHARS:
            return 0
        if num_chars >= len(content) and cut.content[:num_chars].strip() == content:
            return num_tokens
    return 0

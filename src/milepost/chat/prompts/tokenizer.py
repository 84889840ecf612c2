"""Turns rendered conversations into tokens, of which a turn tokenises only what it adds.

Of a prompt that begins like a known one, everything up to a seam keeps its tokens. A seam is the
place before a control token that both have there: tokenizers merge nothing across it.

    known     <|im_start|>user … <|im_end|>\\n<|im_start|>assistant\\n
    prompt    <|im_start|>user … <|im_end|>\\n<|im_start|>assistant\\nI think … <|im_end|>\\n …
              known tokens, kept ·············^ seam     tokenised anew ················

Which control tokens make seams is learnt by trying, because some tokenizers treat the start of a
text differently: with those, or where tokens do not line up with the text, nothing is remembered.
The end of a span of known tokens is a seam with every tokenizer: what is after it is tokenised on
its own. Not covered is a token that is spelled like text, a control token and more text in one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from milepost.chat.conversation.rendered_prompt import (
    ControlTexts,
    RenderedPrompt,
    Run,
    common_prefix,
    first_difference,
)
from milepost.chat.vocab import Vocab
from milepost.lru import LruCache

MAX_PROMPTS = 32  # as many as conversations in `boundaries`; arbitrary
MAX_CHARS = 64 << 20  # of all prompts; arbitrary: some 200 MB if all is ASCII, tokens included
MIN_CHARS = 2048  # less is tokenised in a millisecond, and must not push out what is not
MAX_LOST_CHARS = 2048  # a known prompt gives way to one that shares all but so much; likewise

# What stands before and after a control token while it is tried; {} is that token.
TEXTS_BEFORE = ("", "a", " a ", "\n\n", "é", "{}", "{} \n")
TEXTS_AFTER = ("", "a", "  a", "\na", "\n\n", "é", "{}", " \n{}a")


class PromptTokenizer:
    """Tokenises with one vocabulary, and remembers what it has made of rendered conversations."""

    def __init__(self, vocab: Vocab, limits: MemoLimits | None = None) -> None:
        self._vocab = vocab
        self._control_tokens = {
            text: token for text, token in vocab.control_texts().items() if len(text) > 1
        }
        self._control_ids = frozenset(self._control_tokens.values())
        self._controls = ControlTexts(self._control_tokens)
        self._memo = TokenMemo(vocab, limits)

    def forget_prompts(self) -> None:
        """Forget the prompts; each costs more again once, and nothing else changes."""
        self._memo.forget()

    def tokenize_prompt(self, prompt: RenderedPrompt) -> list[int]:
        """Return the tokens of what a chat template rendered.

        It begins with exactly one BOS if the model wants one, whether or not the template wrote
        it. Contents that spell a control token stay text.
        """
        return self.tokenize_with_positions(prompt, ())[0].tolist()

    def tokenize_with_positions(
        self, prompt: RenderedPrompt, offsets: Sequence[int]
    ) -> tuple[array[int], list[int]]:
        """Return the same tokens as int32, and for each offset into the text the position of it.

        `offsets` are in rising order. One inside a token gets the position of that token. What an
        earlier prompt began with is not tokenised again, which changes nothing but the time.
        """
        tokenised = self._tokenise(prompt)
        tokens = tokenised.tokens[:]
        positions = self._find_positions(tokenised, offsets)
        bos = self._vocab.bos_token
        # Not left to the vocabulary: it would add a second BOS, or an EOS after the prompt.
        if self._vocab.adds_bos and bos >= 0 and tokens[:1].tolist() != [bos]:
            tokens.insert(0, bos)
            positions = [position + 1 for position in positions]
        return tokens, positions

    def _tokenise(self, prompt: RenderedPrompt) -> TokenisedPrompt:
        head = self._memo.recall(prompt)
        whole = None
        if head is not None:
            whole = head.join(prompt, self._tokenise_all(head.rest_of(prompt)))
        if whole is None:
            whole = self._tokenise_all(prompt)
        self._memo.remember(whole, head)
        return whole

    def _tokenise_all(self, prompt: RenderedPrompt) -> TokenisedPrompt:
        whole = TokenisedPrompt(prompt, array("i"), [], [], [])
        for part in prompt.parts_between_spans():
            self._add_part(whole, part.prompt, part.start)
            if part.following is not None:
                whole.tokens.extend(part.following.tokens)
                whole.starts.append(part.following.end)
                whole.ends.append(part.following.end)
                whole.positions.append(len(whole.tokens))
        return whole

    def _add_part(self, whole: TokenisedPrompt, part: RenderedPrompt, offset: int) -> None:
        spans = list(self._controls.token_spans(part))
        runs = self._controls.cut_at_marks(part) if part.marks else [Run(part.text, True)]
        done = num_spans = 0
        for run in runs:
            if not run.text:
                continue
            new = self._vocab.tokenize(run.text, add_special=False, parse_special=run.parse_special)
            done += len(run.text)
            inside = spans[num_spans : bisect_left(spans, (done, 0), num_spans)]
            num_spans += len(inside)
            self._note_controls(whole, [(a + offset, b + offset) for a, b in inside], new)
            whole.tokens.extend(new)

    def _note_controls(
        self, whole: TokenisedPrompt, spans: list[tuple[int, int]], new: list[int]
    ) -> None:
        """Note where control tokens stand, if the new tokens hold just those that are spelled."""
        spelled = [self._control_tokens[whole.prompt.text[start:end]] for start, end in spans]
        found = [i for i, token in enumerate(new) if token in self._control_ids]
        if [new[i] for i in found] != spelled:
            return
        num_before = len(whole.tokens)
        whole.starts.extend(start for start, _ in spans)
        whole.ends.extend(end for _, end in spans)
        whole.positions.extend(num_before + i for i in found)

    def _find_positions(self, whole: TokenisedPrompt, offsets: Sequence[int]) -> list[int]:
        """Return positions of offsets, each counted from the last control token that is certain."""
        starts = [0, *whole.starts, len(whole.prompt.text)]
        edges = [0, *whole.positions, len(whole.tokens)]
        positions: list[int] = []
        while len(positions) < len(offsets):
            first = len(positions)
            i = bisect_right(starts, offsets[first]) - 1
            if i == len(starts) - 1:
                return positions + [edges[-1]] * (len(offsets) - first)
            if offsets[first] == starts[i]:  # most messages begin with a control token
                positions.append(edges[i])
                continue
            inside = offsets[first : bisect_left(offsets, starts[i + 1], first)]
            text = whole.prompt.text[starts[i] : starts[i + 1]]
            tokens = whole.tokens[edges[i] : edges[i + 1]]
            found = self._positions_in(text, tokens, [offset - starts[i] for offset in inside])
            positions += [edges[i] + position for position in found]
        return positions

    def _positions_in(self, text: str, tokens: Sequence[int], offsets: Sequence[int]) -> list[int]:
        """Return positions of offsets, in rising order, among the tokens of a text.

        Where the bytes of tokens are not the text, as with tokenizers that normalise, the rest of
        the offsets gets the last position that is certain.
        """
        positions: list[int] = []
        position = num_bytes = target = done = 0
        data = text.encode("utf-8", "replace") if any(offsets) else b""
        for offset in offsets:
            target += len(text[done:offset].encode("utf-8", "replace"))
            done = offset
            while num_bytes < target and position < len(tokens):
                end = _match_token(data, num_bytes, self._vocab.token_bytes(tokens[position]))
                if not num_bytes <= end <= target:
                    break
                num_bytes = end
                position += 1
            positions.append(position)
        return positions


@dataclass(frozen=True, slots=True)
class TokenisedPrompt:
    """The tokens of a prompt, without added ones, and where its control tokens are; never changed.

    Control token `i` is spelled from `starts[i]` to `ends[i]` and stands at `positions[i]`; those
    whose position is not certain are left out, and those in spans. Where a span ends is an entry
    too, with an empty text.
    """

    prompt: RenderedPrompt
    tokens: array[int]
    starts: list[int]
    ends: list[int]
    positions: list[int]


@dataclass(frozen=True, slots=True)
class KnownHead:
    """What a prompt has in common with a known one: all before its entry `seam`."""

    known: TokenisedPrompt
    seam: int

    @property
    def offset(self) -> int:
        """Where in the text it ends."""
        return self.known.starts[self.seam]

    @property
    def position(self) -> int:
        """Where in the tokens it ends."""
        return self.known.positions[self.seam]

    def rest_of(self, prompt: RenderedPrompt) -> RenderedPrompt:
        """Return what is left of a prompt after this head."""
        return prompt.part(self.offset)

    def join(self, prompt: RenderedPrompt, rest: TokenisedPrompt) -> TokenisedPrompt | None:
        """Return the whole prompt; None if the rest does not begin with the same control token."""
        known, seam, offset, position = self.known, self.seam, self.offset, self.position
        if known.starts[seam] == known.ends[seam]:
            seam += 1  # the end of a span, which belongs to the head
        elif rest.starts[:1] != [0] or rest.positions[:1] != [0]:
            return None
        return TokenisedPrompt(
            prompt,
            known.tokens[:position] + rest.tokens,
            known.starts[:seam] + [start + offset for start in rest.starts],
            known.ends[:seam] + [end + offset for end in rest.ends],
            known.positions[:seam] + [pos + position for pos in rest.positions],
        )


@dataclass(frozen=True, slots=True)
class MemoLimits:
    """How much is remembered, and what is worth it."""

    max_prompts: int = MAX_PROMPTS
    max_chars: int = MAX_CHARS
    min_chars: int = MIN_CHARS
    max_lost_chars: int = MAX_LOST_CHARS


class TokenMemo:
    """Remembers the prompts that were tokenised last.

    Two threads may prepare requests at once: entries are never changed.
    """

    def __init__(self, vocab: Vocab, limits: MemoLimits | None = None) -> None:
        self._seams = SeamProbe(vocab)
        self._limits = limits or MemoLimits()
        # By their ids.
        self._known: LruCache[int, TokenisedPrompt] = LruCache(
            self._limits.max_prompts,
            max_size=self._limits.max_chars,
            size_of=lambda _, known: len(known.prompt.text),
        )

    def forget(self) -> None:
        """Forget all prompts; each costs more again once, and nothing else changes."""
        self._known.clear()

    def recall(self, prompt: RenderedPrompt) -> KnownHead | None:
        """Return the longest known head of a prompt; None if there is none."""
        best = None
        for known in reversed(self._known.values()):
            head = self._shared_head(known, prompt)
            if head is not None and (best is None or head.offset > best.offset):
                best = head
        return best

    def remember(self, new: TokenisedPrompt, head: KnownHead | None) -> None:
        """Remember a prompt; `head` is what `recall` has returned for it."""
        limits = self._limits
        if not limits.min_chars <= len(new.prompt.text) <= limits.max_chars:
            return
        if self._last_seam(new, len(new.starts)) < 0:
            return
        if head is not None:
            if head.known.ends[-1] - head.offset > limits.max_lost_chars:
                self._known.get(id(head.known))  # the new one is a branch, and both may go on
            else:
                self._known.pop(id(head.known))
        self._known.put(id(new), new)

    def _shared_head(self, known: TokenisedPrompt, prompt: RenderedPrompt) -> KnownHead | None:
        num_shared = common_prefix(known.prompt.text, prompt.text)
        if known.prompt.marks != prompt.marks:
            num_shared = min(num_shared, _first_difference(known.prompt.marks, prompt.marks))
        other_span = first_difference(known.prompt.spans, prompt.spans)
        if other_span is not None:
            num_shared = min(num_shared, other_span)
        seam = self._last_seam(known, bisect_right(known.ends, num_shared))
        return KnownHead(known, seam) if seam >= 0 else None

    def _last_seam(self, known: TokenisedPrompt, count: int) -> int:
        """Return the last seam among the first entries of a prompt; -1 if there is none.

        The start of the prompt is none.
        """
        for i in range(count - 1, -1, -1):
            start, end = known.starts[i], known.ends[i]
            if start > 0 and (start == end or self._seams.is_seam(known.prompt.text[start:end])):
                return i
        return -1


class SeamProbe:
    """Finds out before which control tokens a text can be cut without other tokens.

    Each is tried when it is first asked for: vocabularies have up to thousands, templates a few.
    """

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab
        self._controls: Mapping[str, int] = vocab.control_texts()
        self._found: dict[str, bool] = {}  # two threads would write the same

    def is_seam(self, text: str) -> bool:
        """Say whether the tokens before and from this control token on are independent."""
        found = self._found.get(text)
        if found is None:
            found = self._found[text] = self._try(text)
        return found

    def _try(self, text: str) -> bool:
        # Else what follows could make this token a part of one that begins earlier.
        if any(text in other[1:] for other in self._controls):
            return False
        token = self._controls[text]
        alone = {
            after: self._tokenize(text + after)
            for after in (each.replace("{}", text) for each in TEXTS_AFTER)
        }
        for before in (each.replace("{}", text) for each in TEXTS_BEFORE):
            *head, last = self._tokenize(before + text) or [-1]
            if last != token:
                return False
            for after, rest in alone.items():
                if self._tokenize(before + text + after) != head + rest:
                    return False
        return True

    def _tokenize(self, text: str) -> list[int]:
        return self._vocab.tokenize(text, add_special=False, parse_special=True)


def _match_token(data: bytes, start: int, token_bytes: bytes) -> int:
    """Return where a token that begins at `start` ends in the bytes of a text; -1 if it is not it.

    Some tokenizers put a space before the first word; some tokens take the white space after them.
    """
    if data.startswith(token_bytes, start):
        return start + len(token_bytes)
    if token_bytes.startswith(b" ") and data.startswith(token_bytes[1:], start):
        return start + len(token_bytes) - 1
    while data[start : start + 1].isspace():
        start += 1
        if data.startswith(token_bytes, start):
            return start + len(token_bytes)
    return -1


def _first_difference(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return the first mark that only one of two different prompts has."""
    return min(set(one) ^ set(other))

"""Turns prompts into tokens: rendered conversations, and the raw prompts of completion requests."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from milepost.chat.conversation.control_texts import ControlTexts, Run
from milepost.chat.conversation.rendered_prompt import RenderedPrompt
from milepost.chat.prompts.token_memo import MemoLimits, TokenisedPrompt, TokenMemo
from milepost.chat.vocab import Vocab
from milepost.errors import InvalidRequest


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
        # Not left to the vocabulary: it would add a second BOS, or an EOS behind the prompt.
        if self._vocab.adds_bos and bos >= 0 and tokens[:1].tolist() != [bos]:
            tokens.insert(0, bos)
            positions = [position + 1 for position in positions]
        return tokens, positions

    def tokenize_raw(self, prompt: object) -> list[list[int]]:
        """Return the tokens of each prompt in the `prompt` field of a completion request.

        As in llama-server that is one string, one list of token ids, or strings and ids mixed; or
        a list of such, or of objects with a `prompt_string`. Control tokens spelled in strings
        are parsed.

        Raises InvalidRequest for anything else, ids out of range, and prompts without tokens.
        """
        if isinstance(prompt, list) and not any(_is_int(item) for item in prompt):
            if not prompt:
                raise _invalid("prompt is an empty list; send a string or a list of token ids")
            return [self.tokenize_one(item, f"prompt[{i}]") for i, item in enumerate(prompt)]
        return [self.tokenize_one(prompt, "prompt")]

    def tokenize_one(self, prompt: object, where: str) -> list[int]:
        """Return the tokens of one of those prompts, which errors call `where`."""
        if isinstance(prompt, Mapping):
            if prompt.get("multimodal_data"):
                raise _invalid(f"{where} has multimodal_data, which works at /completion only")
            prompt = prompt.get("prompt_string")
        first = prompt[0] if isinstance(prompt, list) and prompt else prompt
        add_special = not self._starts_with_bos(first)
        tokens = self.tokenize_mixed(
            prompt, add_special=add_special, parse_special=True, where=where
        )
        if not tokens:
            raise _invalid(f"{where} is empty; send at least one token of text")
        return tokens

    def tokenize_around(self, pieces: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each piece of a raw prompt that is cut by media."""
        return [
            self.tokenize_mixed(
                piece, add_special=i == 0 and not self._starts_with_bos(piece), parse_special=True
            )
            for i, piece in enumerate(pieces)
        ]

    def tokenize_mixed(
        self, content: object, *, add_special: bool, parse_special: bool, where: str = "content"
    ) -> list[int]:
        """Return the tokens of a string, or of a list of strings and token ids."""
        items = content if isinstance(content, list) else [content]
        tokens: list[int] = []
        for i, item in enumerate(items):
            if isinstance(item, str):
                text = item.encode("utf-8", "replace").decode()  # JSON can hold lone surrogates
                tokens += self._vocab.tokenize(
                    text, add_special=add_special and i == 0, parse_special=parse_special
                )
            elif _is_int(item):
                tokens.append(self._check_token(item, f"{where}[{i}]"))
            else:
                raise _invalid(
                    f"{where} must be a string, or a list of strings and token ids, "
                    f"but holds {_kind(item)}",
                    param=where.partition("[")[0],
                )
        return tokens

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

        Where pieces of tokens are not the text, as with tokenizers that normalise, the rest of
        the offsets gets the last position that is certain.
        """
        positions: list[int] = []
        position = num_bytes = target = done = 0
        data = text.encode("utf-8", "replace") if any(offsets) else b""
        for offset in offsets:
            target += len(text[done:offset].encode("utf-8", "replace"))
            done = offset
            while num_bytes < target and position < len(tokens):
                end = _match_piece(data, num_bytes, self._vocab.token_bytes(tokens[position]))
                if not num_bytes <= end <= target:
                    break
                num_bytes = end
                position += 1
            positions.append(position)
        return positions

    def _starts_with_bos(self, first: object) -> bool:
        bos = self._vocab.bos_text
        return bool(bos) and isinstance(first, str) and first.startswith(bos)

    def _check_token(self, token: int, where: str) -> int:
        if not 0 <= token < self._vocab.num_tokens:
            raise _invalid(
                f"{where} is token {token}, but the model has tokens 0 to "
                f"{self._vocab.num_tokens - 1} only",
                param=where.partition("[")[0],
            )
        return token


def _match_piece(data: bytes, start: int, piece: bytes) -> int:
    """Return where a token that begins at `start` ends in the bytes of a text; -1 if it is not it.

    Some tokenizers put a space before the first word; some tokens take white space behind them.
    """
    if data.startswith(piece, start):
        return start + len(piece)
    if piece.startswith(b" ") and data.startswith(piece[1:], start):
        return start + len(piece) - 1
    while data[start : start + 1].isspace():
        start += 1
        if data.startswith(piece, start):
            return start + len(piece)
    return -1


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _kind(value: object) -> str:
    return "null" if value is None else f"a value of type {type(value).__name__}"


def _invalid(message: str, *, param: str = "prompt") -> InvalidRequest:
    return InvalidRequest(message, param=param)

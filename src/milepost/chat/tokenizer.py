"""Turns prompts into tokens: rendered conversations, and the raw prompts of completion requests."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from milepost.chat.control_texts import ControlTexts, RenderedPrompt, Run
from milepost.chat.vocab import Vocab
from milepost.errors import InvalidRequest


class PromptTokenizer:
    """Tokenises with one vocabulary."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab
        self._controls = ControlTexts(vocab.control_texts())

    def tokenize_prompt(self, rendered: str) -> list[int]:
        """Return the tokens of what a chat template rendered.

        It begins with exactly one BOS if the model wants one, whether or not the template wrote
        it. In a `RenderedPrompt`, contents that spell a control token stay text.
        """
        return self.tokenize_with_positions(rendered, ())[0]

    def tokenize_with_positions(
        self, rendered: str, offsets: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """Return the same tokens, and for each offset into the text the position of it.

        `offsets` are in rising order. One inside a token gets the position of that token.
        """
        prompt = rendered if isinstance(rendered, RenderedPrompt) else RenderedPrompt(rendered)
        tokens: list[int] = []
        positions: list[int] = []
        done = num_placed = 0
        for run in self._cut_for(prompt, offsets):
            new = self._vocab.tokenize(run.text, add_special=False, parse_special=run.parse_special)
            done += len(run.text)
            inside = offsets[num_placed : bisect_left(offsets, done, num_placed)]
            start = done - len(run.text)
            found = self._positions_in(run.text, new, [offset - start for offset in inside])
            positions += [len(tokens) + position for position in found]
            num_placed += len(inside)
            tokens += new
        positions += [len(tokens)] * (len(offsets) - num_placed)
        bos = self._vocab.bos_token
        # Not left to the vocabulary: it would add a second BOS, or an EOS behind the prompt.
        if self._vocab.adds_bos and bos >= 0 and tokens[:1] != [bos]:
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
            return [self._tokenize_one(item, f"prompt[{i}]") for i, item in enumerate(prompt)]
        return [self._tokenize_one(prompt, "prompt")]

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

    def _cut_for(self, prompt: RenderedPrompt, offsets: Sequence[int]) -> Iterator[Run]:
        """Cut a prompt into runs, so that offsets are near the start of one.

        Cuts are made before control tokens only, which does not change the tokens: see
        `ControlTexts.cut_at_marks`. Before, because some tokens take the white space behind them.
        """
        cuts = self._cuts_for(prompt, offsets)
        cut = next(cuts, None)
        done = 0
        runs = self._controls.cut_at_marks(prompt) if prompt.marks else [Run(prompt, True)]
        for run in runs:
            start, end = done, done + len(run.text)
            while cut is not None and cut < end:
                if cut > done:
                    yield Run(run.text[done - start : cut - start], run.parse_special)
                    done = cut
                cut = next(cuts, None)
            if done < end:
                yield Run(run.text[done - start :], run.parse_special)
            done = end

    def _cuts_for(self, prompt: RenderedPrompt, offsets: Sequence[int]) -> Iterator[int]:
        """Yield, for each offset, the start of the last control token that begins up to it."""
        num_before = 0
        last = -1
        for start, _ in self._controls.token_spans(prompt) if offsets else ():
            behind = bisect_left(offsets, start, num_before)
            if behind > num_before and last >= 0:
                yield last
            num_before, last = behind, start
        if last >= 0 and num_before < len(offsets):
            yield last

    def _positions_in(self, text: str, tokens: list[int], offsets: Sequence[int]) -> list[int]:
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
                end = _match_piece(data, num_bytes, self._vocab.piece(tokens[position]))
                if not num_bytes <= end <= target:
                    break
                num_bytes = end
                position += 1
            positions.append(position)
        return positions

    def _tokenize_one(self, prompt: object, where: str) -> list[int]:
        if isinstance(prompt, Mapping):
            if prompt.get("multimodal_data"):
                raise _invalid(f"{where} has multimodal_data, which does not work here yet")
            prompt = prompt.get("prompt_string")
        first = prompt[0] if isinstance(prompt, list) and prompt else prompt
        add_special = not (isinstance(first, str) and self._starts_with_bos(first))
        tokens = self.tokenize_mixed(
            prompt, add_special=add_special, parse_special=True, where=where
        )
        if not tokens:
            raise _invalid(f"{where} is empty; send at least one token of text")
        return tokens

    def _starts_with_bos(self, text: str) -> bool:
        return bool(self._vocab.bos_text) and text.startswith(self._vocab.bos_text)

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

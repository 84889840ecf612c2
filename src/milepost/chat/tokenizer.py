"""Turns prompts into tokens: rendered conversations, and the raw prompts of completion requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from milepost.chat.control_texts import ControlTexts, RenderedPrompt
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
        if isinstance(rendered, RenderedPrompt) and rendered.marks:
            tokens: list[int] = []
            for run in self._controls.cut_at_marks(rendered):
                tokens += self._vocab.tokenize(
                    run.text, add_special=False, parse_special=run.parse_special
                )
        else:
            tokens = self._vocab.tokenize(rendered, add_special=False, parse_special=True)
        bos = self._vocab.bos_token
        # Not left to the vocabulary: it would add a second BOS, or an EOS behind the prompt.
        if self._vocab.adds_bos and bos >= 0 and tokens[:1] != [bos]:
            tokens.insert(0, bos)
        return tokens

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


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _kind(value: object) -> str:
    return "null" if value is None else f"a value of type {type(value).__name__}"


def _invalid(message: str, *, param: str = "prompt") -> InvalidRequest:
    return InvalidRequest(message, param=param)

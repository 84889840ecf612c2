"""Turns the raw prompts of completion requests into tokens: texts, ids of tokens, and both mixed.

No template has written them, nothing in them is guarded, and nothing is remembered of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from milepost.chat.vocab import Vocab
from milepost.errors import InvalidRequest


def tokenize_raw(vocab: Vocab, prompt: object) -> list[list[int]]:
    """Return the tokens of each prompt in the `prompt` field of a completion request.

    As in llama-server that is one string, one list of token ids, or strings and ids mixed; or
    a list of such, or of objects with a `prompt_string`. Control tokens spelled in strings
    are parsed.

    Raises InvalidRequest for anything else, ids out of range, and prompts without tokens.
    """
    if isinstance(prompt, list) and not any(_is_int(item) for item in prompt):
        if not prompt:
            raise _invalid("prompt is an empty list; send a string or a list of token ids")
        return [tokenize_one(vocab, item, f"prompt[{i}]") for i, item in enumerate(prompt)]
    return [tokenize_one(vocab, prompt, "prompt")]


def tokenize_one(vocab: Vocab, prompt: object, where: str) -> list[int]:
    """Return the tokens of one of those prompts, which errors call `where`."""
    if isinstance(prompt, Mapping):
        if prompt.get("multimodal_data"):
            raise _invalid(f"{where} has multimodal_data, which works at /completion only")
        prompt = prompt.get("prompt_string")
    first = prompt[0] if isinstance(prompt, list) and prompt else prompt
    add_special = not _starts_with_bos(vocab, first)
    tokens = tokenize_mixed(vocab, prompt, add_special=add_special, parse_special=True, where=where)
    if not tokens:
        raise _invalid(f"{where} is empty; send at least one token of text")
    return tokens


def tokenize_around(vocab: Vocab, texts: Sequence[str]) -> list[list[int]]:
    """Return the tokens of each of the texts that media cut a raw prompt into."""
    return [
        tokenize_mixed(
            vocab,
            text,
            add_special=i == 0 and not _starts_with_bos(vocab, text),
            parse_special=True,
        )
        for i, text in enumerate(texts)
    ]


def tokenize_mixed(
    vocab: Vocab, content: object, *, add_special: bool, parse_special: bool, where: str = "content"
) -> list[int]:
    """Return the tokens of a string, or of a list of strings and token ids."""
    items = content if isinstance(content, list) else [content]
    tokens: list[int] = []
    for i, item in enumerate(items):
        if isinstance(item, str):
            text = item.encode("utf-8", "replace").decode()  # JSON can hold lone surrogates
            tokens += vocab.tokenize(
                text, add_special=add_special and i == 0, parse_special=parse_special
            )
        elif _is_int(item):
            tokens.append(_check_token(vocab, item, f"{where}[{i}]"))
        else:
            raise _invalid(
                f"{where} must be a string, or a list of strings and token ids, "
                f"but holds {_kind(item)}",
                param=where.partition("[")[0],
            )
    return tokens


def _starts_with_bos(vocab: Vocab, first: object) -> bool:
    bos = vocab.bos_text
    return bool(bos) and isinstance(first, str) and first.startswith(bos)


def _check_token(vocab: Vocab, token: int, where: str) -> int:
    if not 0 <= token < vocab.num_tokens:
        raise _invalid(
            f"{where} is token {token}, but the model has tokens 0 to {vocab.num_tokens - 1} only",
            param=where.partition("[")[0],
        )
    return token


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _kind(value: object) -> str:
    return "null" if value is None else f"a value of type {type(value).__name__}"


def _invalid(message: str, *, param: str = "prompt") -> InvalidRequest:
    return InvalidRequest(message, param=param)

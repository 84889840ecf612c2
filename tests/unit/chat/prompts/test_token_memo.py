"""A remembered prompt changes how long tokenising takes, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.fakes.vocab import CONTROLS, IM_END, IM_START, FakeVocab

from milepost.chat.conversation.conversation import make_conversation
from milepost.chat.conversation.rendered_prompt import RenderedPrompt
from milepost.chat.prompts.boundaries import BoundaryFinder
from milepost.chat.prompts.raw_prompts import tokenize_mixed, tokenize_raw
from milepost.chat.prompts.tokenizer import MemoLimits, PromptTokenizer, SeamProbe
from milepost.chat.templates.template import ChatTemplate, SpecialTexts, TemplateSet
from milepost.chat.vocab import Vocab

SMALL = MemoLimits(max_prompts=4, max_chars=5000, min_chars=1, max_lost_chars=40)

TEMPLATE = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

PIECES = (
    *CONTROLS,
    "<think>",
    "a",
    "the",
    " the",
    " ",
    "\n",
    "\n\n",
    "é",
    "日本",
    "<|",
    "|>",
    "12",
)

Case = tuple[RenderedPrompt, list[int]]  # a prompt and offsets into it


def draw_text(rng: random.Random) -> str:
    """Return text in which now and then a control token is spelled."""
    return "".join(rng.choices(PIECES, k=rng.randrange(12)))


def draw_messages(rng: random.Random, known: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return a conversation that goes on, was changed somewhere, or is a branch of another one."""
    messages = list(rng.choice(known[-3:]))
    change = rng.random()
    if change < 0.2:
        del messages[rng.randrange(len(messages)) :]
    elif change < 0.4:
        index = rng.randrange(len(messages))
        messages[index] = {**messages[index], "content": draw_text(rng)}
    while len(messages) < 2 or rng.random() < 0.6:
        role = rng.choice(("user", "assistant"))
        messages.append({"role": role, "content": draw_text(rng)})
    return messages[:24]


def draw_cases(vocab: Vocab, seed: int, count: int) -> Iterator[Case]:
    """Yield prompts of conversations as they come up, with their boundaries."""
    rng = random.Random(seed)
    template = ChatTemplate(TEMPLATE, name="test", texts=SpecialTexts.of(vocab))
    finder = BoundaryFinder(TemplateSet(template))
    known = [[{"role": "system", "content": "You are helpful."}]]
    for _ in range(count):
        known.append(draw_messages(rng, known))
        conversation = make_conversation(known[-1])
        rendered = template.render(conversation)
        found = finder.find_boundaries(conversation, rendered)
        yield rendered, [boundary.offset for boundary in found.boundaries]


class CountingVocab(FakeVocab):
    """Counts the characters that it has tokenised."""

    num_chars = 0

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the tokens of FakeVocab."""
        self.num_chars += len(text)
        return super().tokenize(text, add_special=add_special, parse_special=parse_special)

    def count(self, tokenizer: PromptTokenizer, prompt: RenderedPrompt | str) -> int:
        """Return how many characters the tokenizer tokenises for a prompt."""
        before = self.num_chars
        if isinstance(prompt, str):
            prompt = RenderedPrompt.of_trusted(prompt)
        tokenizer.tokenize_prompt(prompt)
        return self.num_chars - before


def make_tokenizer(vocab: Vocab, limits: MemoLimits = SMALL) -> PromptTokenizer:
    """Return a tokenizer that has probed all control tokens, which would be counted."""
    tokenizer = PromptTokenizer(vocab, limits)
    for text in CONTROLS:
        tokenizer.tokenize_prompt(RenderedPrompt.of_trusted(f"x{text}"))
    return tokenizer


class SpacingVocab(FakeVocab):
    """Puts a space before each text, even where that begins with a control token."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the tokens of FakeVocab after a space."""
        text = f" {text}"
        return super().tokenize(text, add_special=add_special, parse_special=parse_special)


class WordVocab(FakeVocab):
    """Like SentencePiece: a space before each part between control tokens; both eat white space."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the tokens of FakeVocab for the changed text."""
        if not parse_special:
            return [32, *super().tokenize(text, add_special=False, parse_special=False)]
        tokens: list[int] = []
        plain = super().tokenize(text, add_special=add_special, parse_special=True)
        for token in plain:
            is_text = not self.is_control(token)
            if is_text and (not tokens or self.is_control(tokens[-1])):
                if token in (32, 10) and tokens:
                    continue
                tokens.append(32)
            tokens.append(token)
        return tokens


class BeginningVocab(FakeVocab):
    """Puts its BOS before each text, asked or not."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the tokens of FakeVocab after BOS."""
        tokens = super().tokenize(text, add_special=False, parse_special=parse_special)
        return [self.bos_token, *tokens]


class LookingBackVocab(FakeVocab):
    """Spells the first character after a control token by what is before it."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the tokens of FakeVocab for the changed text."""
        text = text.replace("a<|im_start|>", "a<|im_start|>!") if parse_special else text
        return super().tokenize(text, add_special=add_special, parse_special=parse_special)


class NestingVocab(FakeVocab):
    """Has a control token whose text holds another one."""

    def __init__(self) -> None:
        super().__init__()
        self._specials["[<|im_start|>]"] = self.num_tokens
        self.num_tokens += 1

    def control_texts(self) -> dict[str, int]:
        """Return the control tokens by their text."""
        return {**super().control_texts(), "[<|im_start|>]": self.num_tokens - 1}


VOCABS = [
    FakeVocab(),
    FakeVocab(adds_bos=True),
    SpacingVocab(),
    WordVocab(),
    BeginningVocab(),
    LookingBackVocab(),
]


@pytest.mark.parametrize("vocab", VOCABS, ids=lambda vocab: type(vocab).__name__)
@pytest.mark.parametrize("seed", range(3))
def test_conversations_get_the_tokens_of_a_tokenizer_that_remembers_nothing(
    vocab: Vocab, seed: int
) -> None:
    tokenizer = PromptTokenizer(vocab, SMALL)
    for prompt, offsets in draw_cases(vocab, seed, 60):
        expected = PromptTokenizer(vocab).tokenize_with_positions(prompt, offsets)
        assert tokenizer.tokenize_with_positions(prompt, offsets) == expected


def test_the_conversations_are_such_that_it_matters() -> None:
    vocab = CountingVocab()
    tokenizer = make_tokenizer(vocab)
    cases = list(draw_cases(vocab, 0, 60))
    num_tokenised = sum(vocab.count(tokenizer, prompt) for prompt, _ in cases)
    assert num_tokenised < sum(len(prompt.text) for prompt, _ in cases) / 2
    assert sum(bool(prompt.marks) for prompt, _ in cases) > 20


def test_a_turn_tokenises_what_is_after_the_last_known_control_token() -> None:
    vocab = CountingVocab()
    tokenizer = make_tokenizer(vocab)
    head = "<|im_start|>" + 100 * "x" + "<|im_end|>"
    vocab.count(tokenizer, f"{head}<|im_start|>a")
    turn = f"{head}<|im_start|>and<|im_end|>"
    assert vocab.count(tokenizer, turn) == len("<|im_start|>and<|im_end|>")
    assert vocab.count(tokenizer, turn) == len("<|im_end|>")
    assert tokenizer.tokenize_prompt(RenderedPrompt.of_trusted(turn)) == [
        *(IM_START, *(100 * b"x"), IM_END),
        *(IM_START, *b"and", IM_END),
    ]


def test_a_prompt_that_was_forgotten_is_tokenised_anew() -> None:
    vocab = CountingVocab()
    tokenizer = make_tokenizer(vocab)
    prompt = "<|im_start|>" + 100 * "x" + "<|im_end|>"
    vocab.count(tokenizer, prompt)
    tokenizer.forget_prompts()
    assert vocab.count(tokenizer, prompt) == len(prompt)


def test_a_known_control_token_that_is_not_spelled_to_its_end_is_no_seam() -> None:
    vocab = CountingVocab()
    tokenizer = make_tokenizer(vocab)
    stem = f"{100 * 'x'}<|im_start|>a"
    vocab.count(tokenizer, f"{stem}<|im_end|>")
    assert vocab.count(tokenizer, f"{stem}<|im_") == len("<|im_start|>a<|im_")


def test_marks_are_a_part_of_what_is_known() -> None:
    vocab = CountingVocab()
    tokenizer = make_tokenizer(vocab)
    text = "<|im_start|>a<|im_end|><|im_start|>b<|im_end|>"
    real = [IM_START, 97, IM_END, IM_START, 98, IM_END]
    spelled = [IM_START, 97, *b"<|im_end|>", IM_START, 98, IM_END]
    assert tokenizer.tokenize_prompt(RenderedPrompt.of_trusted(text)) == real
    assert tokenizer.tokenize_prompt(RenderedPrompt(text, (14,))) == spelled
    assert tokenizer.tokenize_prompt(RenderedPrompt.of_trusted(text)) == real
    marked = RenderedPrompt(f"{text}<|im_start|>", (14,))
    assert vocab.count(tokenizer, marked) == len("<|im_end|><|im_start|>")
    assert tokenizer.tokenize_prompt(marked) == [*spelled, IM_START]


@pytest.mark.parametrize("vocab", [SpacingVocab(), BeginningVocab(), LookingBackVocab()])
def test_no_seam_where_the_start_of_a_text_is_special(vocab: Vocab) -> None:
    assert not SeamProbe(vocab).is_seam("<|im_start|>")


def test_seams_are_found_by_control_token() -> None:
    assert all(SeamProbe(vocab).is_seam("<|im_start|>") for vocab in (FakeVocab(), WordVocab()))
    assert SeamProbe(LookingBackVocab()).is_seam("<|im_end|>")
    assert SeamProbe(NestingVocab()).is_seam("<|im_end|>")
    assert not SeamProbe(NestingVocab()).is_seam("<|im_start|>")


def test_branches_are_known_side_by_side() -> None:
    vocab = CountingVocab()
    tokenizer = make_tokenizer(vocab)
    stem = "<|im_start|>" + 100 * "s" + "<|im_end|>"
    branches = [f"{stem}<|im_start|>{100 * letter}<|im_end|>" for letter in "abc"]
    for branch in branches:
        vocab.count(tokenizer, branch)
    assert [vocab.count(tokenizer, f"{branch}!") for branch in branches] == 3 * [11]


def test_a_prompt_gives_way_to_its_next_turn() -> None:
    vocab = CountingVocab()
    tokenizer = make_tokenizer(vocab)
    other = "<|im_start|>other<|im_end|>"
    vocab.count(tokenizer, other)
    turn = "<|im_start|>one<|im_end|>"
    for _ in range(10):
        turn += "<|im_start|>more<|im_end|>"
        vocab.count(tokenizer, turn)
    assert vocab.count(tokenizer, other) == len("<|im_end|>")


@pytest.mark.parametrize(
    "limits",
    [
        MemoLimits(max_prompts=2, min_chars=1),
        MemoLimits(max_chars=250, min_chars=1),
    ],
)
def test_the_least_recently_used_is_forgotten(limits: MemoLimits) -> None:
    vocab = CountingVocab()
    tokenizer = make_tokenizer(vocab, limits)
    one, two, three = (f"{letter}<|im_end|>{90 * letter}<|im_start|>" for letter in "abc")
    for prompt in (one, two, one, three):
        vocab.count(tokenizer, prompt)
    assert vocab.count(tokenizer, one) == len("<|im_start|>")
    assert vocab.count(tokenizer, three) == len("<|im_start|>")
    assert vocab.count(tokenizer, two) == len(two)


@pytest.mark.parametrize("limits", [MemoLimits(), MemoLimits(min_chars=1, max_chars=20)])
def test_what_is_too_short_or_too_long_is_not_remembered(limits: MemoLimits) -> None:
    vocab = CountingVocab()
    tokenizer = make_tokenizer(vocab, limits)
    prompt = "<|im_start|>abc<|im_end|>"
    for _ in range(2):
        assert vocab.count(tokenizer, prompt) == len(prompt)


def test_raw_prompts_are_not_remembered() -> None:
    vocab = CountingVocab()
    tokenizer = make_tokenizer(vocab)
    prompt = "<|im_start|>abc<|im_end|>"
    tokenize_raw(vocab, prompt)
    tokenize_mixed(vocab, prompt, add_special=False, parse_special=True)
    assert vocab.count(tokenizer, prompt) == len(prompt)


def test_two_threads_get_their_own_tokens() -> None:
    vocab = FakeVocab()
    tokenizer = make_tokenizer(vocab)
    cases = [case for seed in range(2) for case in draw_cases(vocab, seed, 40)]
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda case: tokenizer.tokenize_with_positions(*case), cases))
    assert found == [PromptTokenizer(vocab).tokenize_with_positions(*case) for case in cases]

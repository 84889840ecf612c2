"""What a typical tool schema costs per token, on a vocabulary of 151,936 tokens.

    python -m benchmarks.mask_time [--repeats N] [--vocab N]

No model is loaded. The vocabulary is made of random words; a reply of text and one call is written
in its longest tokens. "as sampled" is what the engine does: ask about the sampled token, and for
all allowed ones where that is refused, which is at one token in ten here. "every mask" would be
the cost of masking before sampling.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from benchmarks.report import Row, Run, Target, finish, make_parser, parse_arguments
from milepost.api.openai.chat_request import parse_tools
from milepost.chat.formats.grammar_writer import SpecialTokens
from milepost.chat.formats.json_calls import JsonBody
from milepost.chat.formats.reply_format import Affix, ReplyFormat, ToolCallFormat
from milepost.chat.replies.reply_plan import ReplyRules, ToolChoice, make_constraint
from milepost.chat.replies.schema_check import GrammarChecker
from milepost.engine.constraints import MatcherConstraint

NUM_VOCAB = 151_936
MAX_MS = 0.2
REFUSED_EVERY = 10  # tokens; arbitrary: a model that knows its format is refused less often
FORMAT = ReplyFormat(
    tool_calls=ToolCallFormat(JsonBody(), call=Affix("<tool_call>", "</tool_call>"))
)
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "The file to change"},
        "edits": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"old": {"type": "string"}, "new": {"type": "string"}},
                "required": ["old", "new"],
                "additionalProperties": False,
            },
        },
        "line": {"type": "integer"},
        "mode": {"enum": ["replace", "insert", "delete"]},
    },
    "required": ["path", "edits"],
    "additionalProperties": False,
}
TEXT = "I will change the loop, because it reads one line too many.\n"
CALL = (
    '<tool_call>\n{"name": "tool_7", "arguments": {"path": "src/reader.py", "edits": [{"old": '
    '"    for line in lines[1:]:\\n        total += len(line)", "new": "    for line in lines:\\n'
    '        total += len(line)"}], "line": 12, "mode": "replace"}}\n</tool_call>'
)
REPLY = TEXT * 4 + CALL


def main() -> None:
    """Measure, and show the table."""
    parser = make_parser(__doc__ or "", repeats=5)
    parser.add_argument("--vocab", type=int, default=NUM_VOCAB, help="default: %(default)s")
    arguments = parse_arguments(parser)
    words = make_words(arguments.vocab)
    started_s = time.perf_counter()
    table = make_table(words)
    table_ms = 1000 * (time.perf_counter() - started_s)
    grammar = make_grammar()
    tokens = write_tokens(REPLY, words)
    sampled, masked, compiled = [], [], []
    for _ in range(arguments.repeats):
        started_s = time.perf_counter()
        matcher = LLMatcher(table, grammar)
        compiled.append(1000 * (time.perf_counter() - started_s))
        sampled.append(time_reply(matcher, tokens, arguments.vocab, mask_every=REFUSED_EVERY))
        masked.append(time_reply(matcher, tokens, arguments.vocab, mask_every=1))
    target = Target("at most", MAX_MS)
    rows = [
        Row("per token, as sampled", "ms", tuple(map(statistics.mean, sampled)), target),
        Row("per token, every mask", "ms", tuple(map(statistics.mean, masked))),
        Row("slowest token, every mask", "ms", tuple(map(max, masked))),
        Row("compile the grammar", "ms", tuple(compiled)),
        Row("table of the vocabulary", "ms", (table_ms,)),
    ]
    settings = {"vocab": arguments.vocab, "tokens": len(tokens), "refused_every": REFUSED_EVERY}
    finish(Run("mask_time", arguments.model, settings, arguments.results), rows)


def make_words(num_vocab: int) -> list[bytes]:
    """Return the bytes of a vocabulary's tokens, all single bytes among them."""
    rng = random.Random(1)
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    words = {bytes([byte]) for byte in range(256)}
    words |= {part.encode() for part in REPLY.replace("\n", " ").split(" ")}
    while len(words) < num_vocab:
        word = "".join(rng.choices(letters, k=rng.randint(2, 9)))
        form = rng.choice(["{}", " {}", " {}", "{}\n", '"{}', '{}"', "{}:", "{}(", "é{}", "漢{}"])
        words.add(form.format(word).encode())
    return sorted(words)


class WordTable:
    """A vocabulary of words in the shape in which llguidance reads one."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, words: Sequence[bytes]) -> None:
        self.tokens = [*words, b"\xff<end>"]
        self.eos_token_id = len(words)
        self.special_token_ids = [self.eos_token_id]

    def __call__(self, text: bytes | str) -> list[int]:
        return [0]


def make_table(words: Sequence[bytes]) -> LLTokenizer:
    """Return llguidance's table of a vocabulary."""
    table: Any = WordTable(words)
    return LLTokenizer(table, n_vocab=len(words) + 1)


def make_grammar() -> str:
    """Return the grammar of replies that may call one of twelve strict tools."""
    tools = [
        {"function": {"name": f"tool_{i}", "parameters": PARAMETERS, "strict": True}}
        for i in range(12)
    ]
    rules = ReplyRules(tools=parse_tools(tools, ToolChoice(), GrammarChecker()))
    return make_constraint(rules, FORMAT, "none", SpecialTokens(), GrammarChecker())


def write_tokens(text: str, words: Sequence[bytes]) -> list[int]:
    """Return the tokens of a text, the longest that fits at each place."""
    ids = {word: token for token, word in enumerate(words)}
    longest = max(map(len, words))
    data, tokens = text.encode(), []
    while data:
        size = next(n for n in range(min(longest, len(data)), 0, -1) if data[:n] in ids)
        tokens.append(ids[data[:size]])
        data = data[size:]
    return tokens


def time_reply(
    matcher: LLMatcher, tokens: Sequence[int], num_vocab: int, *, mask_every: int
) -> list[float]:
    """Return the ms of each token of a reply, with all allowed tokens at every so many."""
    constraint = MatcherConstraint(matcher.deep_copy(), num_vocab, frozenset())
    times = []
    for number, token in enumerate(tokens):
        started_s = time.perf_counter()
        if number % mask_every == 0:
            constraint.allowed()
        assert constraint.try_accept(token), f"token {number} is refused"
        times.append(1000 * (time.perf_counter() - started_s))
    return times


if __name__ == "__main__":
    main()

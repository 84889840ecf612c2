"""The benchmark of constraints writes a reply that its grammar allows, token by token."""

from benchmarks.mask_time import (
    REPLY,
    make_grammar,
    make_table,
    make_words,
    time_reply,
    write_tokens,
)
from llguidance import LLMatcher


def test_the_reply_follows_the_grammar_in_tokens_of_words() -> None:
    words = make_words(4000)
    tokens = write_tokens(REPLY, words)
    assert b"".join(words[token] for token in tokens).decode() == REPLY
    assert len(tokens) < len(REPLY) / 2
    matcher = LLMatcher(make_table(words), make_grammar())
    assert len(time_reply(matcher, tokens, len(words), mask_every=10)) == len(tokens)

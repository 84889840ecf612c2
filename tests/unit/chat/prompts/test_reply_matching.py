"""Replies that come back get the tokens that were sampled, whatever the client made of them."""

from __future__ import annotations

import json
import random
import re
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.vocab import MergingVocab
from tests.published import TEMPLATE_PATHS, read_template
from tests.unit.chat import families
from tests.unit.chat.prompts.test_boundaries import OPENED_THINKING

from milepost.api.openai.messages import parse_conversation
from milepost.chat.formats.reply_events import CallStart
from milepost.chat.prompts.boundaries import BoundaryFinder, PromptBoundaries
from milepost.chat.prompts.reply_matching import ReplyCounts, ReplyMatcher
from milepost.chat.prompts.tokenizer import MemoLimits, PromptTokenizer
from milepost.chat.replies.stream_parser import ReplyParser
from milepost.chat.reply_memory.reply_meaning import meaning_of_events, meaning_of_message
from milepost.chat.reply_memory.reply_store import (
    KeptReply,
    ReplyContext,
    ReplyKeeper,
    ReplyStore,
    SampledReply,
    read_parsed,
)
from milepost.chat.templates.builtin_templates import BUILTIN_TEMPLATES
from milepost.chat.templates.template import ChatTemplate, SpecialTexts, TemplateSet

CONTROL = re.compile(
    r"<\|[\w/]+\|>|<[｜][^｜]*[｜]>|</?s>|\[/?[A-Z_]+\]|<(?:start|end)_of_turn>|<SPECIAL_\d+>|<\|\w+>|<\w+\|>"
)
ENDS = re.compile(
    r"<\|(im_end|eot_id|eot|end|return|call|eom_id|end_of_text|endoftext)\|>|</s>"
    r"|<end_of_turn>|<｜end▁of▁sentence｜>|<\|END_OF_TURN_TOKEN\|>|<\|end_of_turn\|>|<SPECIAL_12>|<turn\|>|<\|tool_response>"
)
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "read",
            "description": "Reads.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
]
SMALL = MemoLimits(max_prompts=4, min_chars=1, max_lost_chars=40)
TEXT: dict[str, bool] = {"add_special": False, "parse_special": True}
NUM_TURNS = 8
OWN_FAMILIES = (
    families.INST_ALTERNATING,
    families.NO_SYSTEM,
    families.TEXT_ARGUMENTS,
    families.PRINTED_ARGUMENTS,
    families.TYPED_PARTS,
    families.THINKING_KEY,
    families.ITEMS_OF_ARGUMENTS,
)
# Published templates that show calls, and reasoning in a loop of calls if they know any.
GOLDEN = (
    "ByteDance-Seed-OSS",
    "GLM-4.6",
    "Kimi-K2-Instruct",
    "MiniMax-M2",
    "Mistral-Small-3.2-24B-Instruct-2506",
    "Qwen-Qwen2.5-7B-Instruct",
    "Qwen-Qwen3-0.6B",
    "Qwen3-Coder",
    "Qwen3.5-4B",
    "StepFun3.5-Flash",
    "deepseek-ai-DeepSeek-V3.1",
    "google-gemma-4-31B-it",
    "ibm-granite-granite-4.0",
    "meta-llama-Llama-3.1-8B-Instruct",
    "meta-llama-Llama-3.3-70B-Instruct",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "openai-gpt-oss-120b",
)
# They write the ids of calls, and again with their results.
WITH_IDS = (
    "Kimi-K2-Instruct",
    "Mistral-Small-3.2-24B-Instruct-2506",
    "mistralai-Mistral-Nemo-Instruct-2407",
)
SHORT_IDS = families.CALL_IDS.replace(
    "{{ call.id }}",
    "{{ call.id if call.id|length == 9 else raise_exception('ids have 9 letters') }}",
)
# The generation prompt opens reasoning, which their history does not have without any.
OPENED = (
    "MiniMax-M2",
    "NVIDIA-Nemotron-Nano-v2",
    "Qwen3.5-4B",
    "StepFun3.5-Flash",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
)


@dataclass
class Server:
    """The front end's half of a server, with a model that writes what it is told."""

    source: str
    puts_space: bool = False
    seed: int = 0
    vocab: MergingVocab = field(init=False)

    def __post_init__(self) -> None:
        controls = list(dict.fromkeys(m[0] for m in CONTROL.finditer(self.source + "</s>")))
        ends = [text for text in controls if ENDS.fullmatch(text)]
        self.vocab = MergingVocab(["<s>", *controls], ends, puts_space=self.puts_space)
        texts = SpecialTexts.of(self.vocab)
        texts = SpecialTexts("<s>", "</s>", texts.controls)
        self.template = ChatTemplate(self.source, name="test", texts=texts)
        self.store = ReplyStore()
        matcher = ReplyMatcher(self.store, self.vocab)
        self.finder = BoundaryFinder(TemplateSet(self.template), matcher)
        self.tokenizer = PromptTokenizer(self.vocab, SMALL)
        self.rng = random.Random(self.seed)

    def ask(
        self, messages: list[dict[str, Any]], tools: Any
    ) -> tuple[list[int], list[str], PromptBoundaries]:
        """Return the tokens of a prompt, the text between spans, and what was found in it."""
        conversation = parse_conversation(messages, tools)
        rendered = self.template.render(conversation)
        found = self.finder.find_boundaries(conversation, rendered)
        prompt = rendered.with_spans(found.replies.spans)
        tokens = self.tokenizer.tokenize_prompt(prompt)
        assert tokens == PromptTokenizer(self.vocab).tokenize_prompt(prompt)
        return tokens, [part.prompt.text for part in prompt.parts_between_spans()], found

    def answer(
        self, messages: list[dict[str, Any]], tools: Any, reply: dict[str, Any]
    ) -> list[int] | None:
        """Sample a reply as the template writes it; None where it writes none after a prompt."""
        prompt = self.template.render(parse_conversation(messages, tools)).text
        later = self.template.render(
            parse_conversation([*messages, reply], tools), add_generation_prompt=False
        ).text
        if not later.startswith(prompt):
            return None
        text = later[len(prompt) :].rstrip("\n")
        while end := next((m for m in ENDS.finditer(text) if m.end() == len(text)), None):
            text = text[: end.start()]
        for arguments in re.findall(r'\{"path": "[^}]*\}', text):
            text = text.replace(arguments, arguments.replace('": "', '":  "'))
        return self.vocab.sample(text, self.rng)

    def keep(self, found: PromptBoundaries, tokens: list[int], reply: dict[str, Any]) -> None:
        """Keep a reply as the API does."""
        (message,) = parse_conversation([reply]).messages
        meaning = meaning_of_message(message)
        assert found.generation_prompt is not None
        self.store.add_reply(
            KeptReply(
                tokens=array("i", tokens),
                generation_prompt=found.generation_prompt,
                meaning=meaning.digest,
                bare=meaning.bare_digest,
                history_key=found.replies.history_keys[-1],
                reasoning=meaning.reasoning,
            )
        )

    def read(self, found: PromptBoundaries, tokens: list[int]) -> dict[str, Any]:
        """Keep a reply that is read by the parser, and return the message that a client gets."""
        assert found.generation_prompt is not None
        reply_format = self.template.reply_format
        start = reply_format.reasoning.start if reply_format.reasoning else ""
        is_open = bool(start) and found.generation_prompt.rstrip().endswith(start)

        def make_parser() -> ReplyParser:
            return ReplyParser(reply_format, in_reasoning=is_open, tools=TOOLS)

        text = self.vocab.detokenize(tokens, special=True)
        context = ReplyContext(
            found.generation_prompt, found.replies.history_keys[-1], read_parsed(make_parser)
        )
        sampled = SampledReply(tokens, [text], is_complete=True)
        ReplyKeeper(self.store, self.vocab).keep_reply(context, sampled, lambda _: True)
        events = list(context.read(text, False))
        meaning = meaning_of_events(events)
        ids = [event.call_id for event in events if isinstance(event, CallStart)]
        calls = [
            {
                "type": "function",
                "id": call_id,
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for call_id, (name, arguments) in zip(ids, meaning.calls, strict=True)
        ]
        message = {"role": "assistant", "content": meaning.content, "tool_calls": calls}
        return {**message, "reasoning_content": meaning.reasoning}


def respell(reply: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return the reply as some client may send it back."""
    sent = {"role": "assistant", **reply}
    content = sent["content"]
    if "tool_calls" in sent:
        sent["tool_calls"] = [respell_call(call, rng) for call in sent["tool_calls"]]
        if not content:
            sent["content"] = rng.choice([None, "", " "])
    if content:
        padded = rng.choice(["", "\n", " "]) + content + rng.choice(["", "\n\n"])
        sent["content"] = rng.choice([content, padded, [{"type": "text", "text": content}]])
    return dict(rng.sample(sorted(sent.items()), len(sent)))


def respell_call(call: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    arguments = json.loads(call["function"]["arguments"])
    arguments = dict(rng.sample(sorted(arguments.items()), len(arguments)))
    text = json.dumps(arguments, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 2]))
    function = {"name": "read", "arguments": rng.choice([arguments, text])}
    return {"type": "function", "id": f"new{rng.randrange(10**6):06}", "function": function}


def draw_reply(rng: random.Random, *, calls: bool, reasoning: bool) -> dict[str, Any]:
    words = ["the", "he", "unéll", "in", "a", "th:", "日本", '"x"']
    reply: dict[str, Any] = {"role": "assistant", "content": " ".join(rng.choices(words, k=4))}
    if reasoning and rng.random() < 0.5:
        reply["reasoning_content"] = " ".join(rng.choices(words, k=4))
    if calls and rng.random() < 0.6:
        arguments = {"path": " ".join(rng.choices(words, k=2)), "é": rng.choice([1, True, [1, 2]])}
        function = {"name": "read", "arguments": json.dumps(arguments, ensure_ascii=False)}
        reply["tool_calls"] = [{"type": "function", "id": "abcdefghi", "function": function}]
        if rng.random() < 0.5:
            reply["content"] = ""
    return reply


def draw_call(rng: random.Random, number: int, *, reasons: bool) -> dict[str, Any]:
    """Return a reply with a call, as a model may mean it."""
    arguments = {"path": f"the/unéll {number}.py", "lines": rng.choice([[1, 2], True, 3, "in"])}
    function = {"name": "read", "arguments": arguments}
    reply: dict[str, Any] = {"role": "assistant", "content": ""}
    reply["tool_calls"] = [{"type": "function", "id": "abcdefghi", "function": function}]
    return {**reply, "reasoning_content": f"the thought {number}"} if reasons else reply


@dataclass
class Talk:
    """What became of the replies of a conversation: the last one of each turn counts."""

    num_replies: int = 0  # that the template can write after a prompt
    num_exact: int = 0
    num_prefixes: int = 0  # of these, turns whose prompt goes on from what was sampled


def talk(server: Server, *, calls: bool, reasoning: bool = False) -> Talk:
    """Go through a random conversation, with replies that come back in some other way."""
    rng, tools, seen = server.rng, TOOLS if calls else None, Talk()
    messages: list[dict[str, Any]] = [{"role": "user", "content": "the <|im_end|> first"}]
    before: tuple[list[int], list[str]] | None = None
    for turn in range(NUM_TURNS):
        tokens, pieces, found = server.ask(messages, tools)
        placed = found.replies.replies
        if before is not None and placed[max(placed)].outcome == "exact":
            seen.num_exact += 1
            if pieces[: len(before[1])] == before[1]:  # the template changed nothing before it
                seen.num_prefixes += 1
                assert tokens[: len(before[0])] == before[0]
        reply = draw_reply(rng, calls=calls, reasoning=reasoning)
        sampled = server.answer(messages, tools, reply)
        before = None
        if sampled is not None:
            seen.num_replies += turn < NUM_TURNS - 1
            before = tokens + sampled, pieces
            server.keep(found, sampled, reply)
        sent = respell(reply, rng)
        messages.append(sent)
        if "tool_calls" in sent:
            call_id = sent["tool_calls"][0]["id"]
            messages.append({"role": "tool", "tool_call_id": call_id, "content": "a file"})
        else:
            messages.append({"role": "user", "content": f"and {turn}?"})
    return seen


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", sorted(BUILTIN_TEMPLATES))
def test_replies_of_all_builtin_families_keep_their_tokens(name: str, seed: int) -> None:
    seen = talk(Server(BUILTIN_TEMPLATES[name], seed=seed), calls=False)
    assert seen == Talk(NUM_TURNS - 1, NUM_TURNS - 1, NUM_TURNS - 1)


@pytest.mark.parametrize("calls", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_calls_keep_their_tokens_whatever_the_client_makes_of_them(seed: int, calls: bool) -> None:
    seen = talk(Server(families.CHATML_TOOLS, seed=seed), calls=calls)
    assert seen == Talk(NUM_TURNS - 1, NUM_TURNS - 1, NUM_TURNS - 1)


@pytest.mark.parametrize("reasoning", [False, True])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("source", [OPENED_THINKING, families.CHATML_TOOLS, *OWN_FAMILIES])
def test_what_is_exact_goes_on_from_what_was_sampled(
    source: str, seed: int, reasoning: bool
) -> None:
    seen = talk(Server(source, seed=seed), calls=True, reasoning=reasoning)
    assert seen.num_prefixes == seen.num_exact


@pytest.mark.parametrize("name", ["gemma", "falcon3", "mistral-v3", "chatml", "vicuna"])
def test_tokenizers_that_put_spaces_cut_at_control_tokens_only(name: str) -> None:
    seen = talk(Server(BUILTIN_TEMPLATES[name], puts_space=True), calls=False)
    assert seen.num_prefixes == seen.num_exact == (0 if name == "falcon3" else NUM_TURNS - 1)


@pytest.mark.parametrize("reasoning", [False, True])
@pytest.mark.parametrize("calls", [False, True])
@pytest.mark.parametrize("path", TEMPLATE_PATHS, ids=lambda p: p.stem)
def test_published_templates(path: Path, calls: bool, reasoning: bool) -> None:
    if calls and "gemma-2" in path.stem:
        pytest.skip("it refuses tools")
    seen = talk(Server(path.read_text("utf-8")), calls=calls, reasoning=reasoning)
    if not calls and not reasoning and path.stem not in OPENED:
        assert seen == Talk(NUM_TURNS - 1, NUM_TURNS - 1, NUM_TURNS - 1)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", GOLDEN)
def test_what_is_read_out_of_a_reply_brings_its_tokens_back(name: str, seed: int) -> None:
    """Text, events, history, and the same tokens; in a loop of calls, where reasoning is kept."""
    server = Server(read_template(name), seed=seed)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "the first"}]
    reasons = server.template.reply_format.reasoning is not None
    tokens: list[int] = []
    sampled: list[int] = []
    for number in range(5):
        goes_on_from = tokens + sampled
        tokens, _, found = server.ask(messages, TOOLS)
        assert tokens[: len(goes_on_from)] == goes_on_from
        assert found.replies.counts == ReplyCounts(exact=number)
        wanted = draw_call(server.rng, number, reasons=reasons)
        sampled_now = server.answer(messages, TOOLS, wanted)
        assert sampled_now is not None
        sampled = sampled_now
        reply = server.read(found, sampled)
        assert reply["tool_calls"][0]["function"]["name"] == "read"
        sent = respell(reply, server.rng)
        if name in WITH_IDS:
            sent["tool_calls"][0]["id"] = reply["tool_calls"][0]["id"]
        call_id = sent["tool_calls"][0]["id"]
        messages += [sent, {"role": "tool", "tool_call_id": call_id, "content": "a file"}]


def calling(call_id: str, path: str = "the") -> dict[str, Any]:
    """Return a reply with a call that has an id."""
    function = {"name": "read", "arguments": {"path": path}}
    call = {"type": "function", "id": call_id, "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "a file"}


def sample_call(server: Server, messages: list[dict[str, Any]], call_id: str) -> list[int]:
    """Sample a call with an id after a conversation, and keep it; return its tokens."""
    _, _, found = server.ask(messages, TOOLS)
    sampled = server.answer(messages, TOOLS, calling(call_id))
    assert sampled is not None
    assert server.read(found, sampled)["tool_calls"][0]["id"] == call_id
    return sampled


def test_of_equal_calls_each_keeps_its_own_id() -> None:
    server = Server(families.CALL_IDS)
    messages = [{"role": "user", "content": "a"}]
    tokens = [
        sample_call(server, messages, "firstcall"),
        sample_call(server, messages, "othercall"),
    ]
    later = [*messages, calling("firstcall"), result("firstcall")]
    tokens.append(sample_call(server, later, "thirdcall"))

    changed = [{"role": "user", "content": "b"}, *later[1:], calling("thirdcall")]
    replies = server.ask(changed, TOOLS)[2].replies
    assert [span.tokens.tolist() for span in replies.spans] == [tokens[0], tokens[2]]
    other = [*messages, calling("othercall"), result("othercall")]
    (span,) = server.ask(other, TOOLS)[2].replies.spans
    assert span.tokens.tolist() == tokens[1]


@pytest.mark.parametrize("source", [families.CALL_IDS, SHORT_IDS])
def test_a_call_with_another_id_than_its_result_is_not_put_back(source: str) -> None:
    server = Server(source)
    messages = [{"role": "user", "content": "a"}]
    sample_call(server, messages, "firstcall")
    outcomes = {}
    for call_id in ("firstcall", "my own id", "othercall"):
        sent = [*messages, calling(call_id), result(call_id)]
        outcomes[call_id] = server.ask(sent, TOOLS)[2].replies.replies[1].outcome
    different = "written_differently"
    assert outcomes == {"firstcall": "exact", "my own id": different, "othercall": different}


def test_reasoning_that_the_template_drops_is_not_put_back() -> None:
    server = Server(families.CHATML_TOOLS)
    first = [{"role": "user", "content": "a"}]
    _, _, found = server.ask(first, None)
    reply = {"role": "assistant", "content": "the answer", "reasoning_content": "a thought"}
    server.keep(found, server.vocab.tokenize("<think>\na thought", **TEXT), reply)

    shown = server.ask([*first, reply], None)[2].replies.replies[1]
    dropped = server.ask([*first, reply, {"role": "user", "content": "b"}], None)[2]

    assert shown.outcome == "exact"
    assert dropped.replies.replies[1].outcome == "written_differently"
    assert dropped.replies.spans == ()


@pytest.mark.parametrize(("written", "outcome"), [("{{ '</s>' }}", "exact"), ("", "differs")])
def test_a_control_token_that_a_user_spells_ends_no_reply(written: str, outcome: str) -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'assistant' %}[A]{{ m.content }}WRITTEN"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}[A]{% endif %}"
    )
    server = Server(source.replace("WRITTEN", written), puts_space=True)
    first = [{"role": "user", "content": "question"}]
    reply = {"role": "assistant", "content": "the answer"}
    server.keep(server.ask(first, None)[2], [97, 98], reply)

    spelling = {"role": "user", "content": "</s>another"}
    found = server.ask([*first, reply, spelling], None)[2].replies.replies[1]
    assert (found.outcome == "exact") == (outcome == "exact")


def test_changed_and_foreign_replies_are_told_apart() -> None:
    server = Server(families.CHATML_TOOLS)
    first = [{"role": "user", "content": "a"}]
    _, _, found = server.ask(first, None)
    server.keep(found, [97], {"role": "assistant", "content": "a"})

    changed = [*first, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    foreign = [*changed, {"role": "assistant", "content": "d"}]
    replies = server.ask(foreign, None)[2].replies.replies

    assert {i: reply.outcome for i, reply in replies.items()} == {1: "changed", 3: "unknown"}


def test_of_equal_replies_the_one_from_this_place_is_taken() -> None:
    server = Server(BUILTIN_TEMPLATES["chatml"])
    reply = {"role": "assistant", "content": "the"}
    for question, tokens in (("a", list(b"the")), ("b", [*b"t", *b"he"]), ("c", [*b"th", *b"e"])):
        _, _, found = server.ask([{"role": "user", "content": question}], None)
        server.keep(found, tokens + server.vocab.tokenize(question, **TEXT), reply)

    def last_token(question: str) -> int:
        found = server.ask([{"role": "user", "content": question}, reply], None)[2]
        return found.replies.spans[0].tokens[-1]

    assert [last_token(question) for question in "cabz"] == list(b"caba")


def test_a_reply_that_was_placed_keeps_its_tokens_when_it_is_forgotten() -> None:
    server = Server(BUILTIN_TEMPLATES["chatml"])
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "the"}]
    server.keep(server.ask(messages[:1], None)[2], list(b"the"), messages[1])
    tokens, _, _ = server.ask([*messages, {"role": "user", "content": "b"}], None)
    server.store.forget_all()

    later, _, found = server.ask(
        [*messages, {"role": "user", "content": "b"}, {"role": "assistant", "content": "x"}], None
    )

    assert [reply.outcome for reply in found.replies.replies.values()] == ["exact", "unknown"]
    prompt_tokens = server.vocab.tokenize("<|im_start|>assistant\n", **TEXT)
    assert later[: len(tokens) - len(prompt_tokens)] == tokens[: -len(prompt_tokens)]


def test_a_conversation_about_another_image_is_another_place() -> None:
    server = Server(BUILTIN_TEMPLATES["chatml"])

    def key(source: str) -> bytes:
        part = {"type": "image_url", "image_url": source}
        return server.ask([{"role": "user", "content": [part]}], None)[2].replies.history_keys[-1]

    one, other = "data:image/png;base64,AAAA", "data:image/png;base64,BBBB"
    assert [key(one), key(other)] == [key(one), key(other)]
    assert key(one) != key(other)

"""Time from the messages of a turn to the tokens of its prompt, besides one rendering.

    python -m benchmarks.turn_preparation [--model FILE] [--repeats N] [--messages N] [--tokens N]

Turn after turn of one long conversation, in one process and without an engine: messages are
checked, the replies among them get the tokens that were sampled, boundaries are found, and the
prompt is tokenised. Replies are sampled in tokens that no tokenizer makes of their text, one a
character. The first rendering of a turn is timed and taken away; further ones are not. Only the
vocabulary of the model is used: SmolLM2's (BPE), or a Gemma's, say (SentencePiece).
"""

from __future__ import annotations

import gc
import json
import time
from dataclasses import dataclass
from pathlib import Path

from tests.models import DEFAULT_TEMPLATE, TURN_END, TURN_START

from benchmarks.report import Row, Run, Target, finish, make_parser, parse_arguments
from benchmarks.request_overhead import watched_method
from benchmarks.workloads.long_conversation import make_body, make_conversation
from milepost.api.http_body import parse_body
from milepost.api.openai.chat_request import prepare_prompt
from milepost.api.openai.schemas import ChatFields
from milepost.api.server import ServedModel
from milepost.assemble import make_served_model
from milepost.chat.reply_memory.reply_store import ReplyKeeper, SampledReply
from milepost.chat.templates.template import ChatTemplate
from milepost.config import ChatSettings, EngineSettings, Settings
from milepost.traces.trace import Message
from milepost.workers.client import EngineClient

MAX_MS = 10.0
NUM_WARM_UPS = 2
GEMMA_TURNS = {TURN_START: "<start_of_turn>", TURN_END: "<end_of_turn>"}


@dataclass(frozen=True, slots=True)
class TurnTimes:
    """One turn, in milliseconds."""

    rendering_ms: float  # one of it
    preparation_ms: float  # all but that
    num_tokens: int
    num_exact: int  # replies


def main() -> None:
    """Measure and report."""
    parser = make_parser(__doc__ or "", repeats=15)
    parser.add_argument("--messages", type=int, default=290, help="default: %(default)s")
    parser.add_argument("--tokens", type=int, default=100_000, help="about; default: %(default)s")
    arguments = parse_arguments(parser)
    model = load_model(arguments.model)
    conversation = make_conversation("harbour", arguments.messages, arguments.tokens)
    times = measure_turns(model, conversation, arguments.repeats)
    model.close()
    settings = {
        "messages": len(conversation),
        "tokens": times[-1].num_tokens,
        "exact_replies": times[-1].num_exact,
    }
    name = f"turn_preparation-{arguments.model.stem}"
    finish(Run(name, arguments.model, settings, arguments.results), make_rows(times))


def load_model(path: Path) -> ServedModel:
    """Return the front end for a vocabulary, with the template of the tests."""
    engine = EngineSettings(model_path=str(path), cache_on_disk=False)
    model = make_served_model(Settings(engine=engine, model_name=path.stem), EngineClient())
    template = DEFAULT_TEMPLATE
    if TURN_START not in model.vocab.control_texts():
        for text, turn in GEMMA_TURNS.items():
            template = template.replace(text, turn)
    model.close()
    chat = ChatSettings(chat_template=template)
    return make_served_model(
        Settings(engine=engine, chat=chat, model_name=path.stem), EngineClient()
    )


def measure_turns(model: ServedModel, conversation: list[Message], repeats: int) -> list[TurnTimes]:
    """Prepare a conversation, and then turn after turn of it; the first ones are warm-ups."""
    keeper = ReplyKeeper(model.replies, model.vocab)
    times = []
    for number in range(repeats + NUM_WARM_UPS):
        fields = parse_body(ChatFields, json.dumps(make_body(conversation, 2)).encode())
        gc.collect()
        gc.freeze()  # as the server does it
        with watched_method(ChatTemplate, "render") as rendering:
            started = time.perf_counter()
            prompt = prepare_prompt(model, fields)
            elapsed_s = time.perf_counter() - started
        assert prompt.context is not None
        times.append(
            TurnTimes(
                1000 * rendering.first_s,
                1000 * (elapsed_s - rendering.first_s),
                prompt.input.num_tokens,
                prompt.replies.counts.exact,
            )
        )
        text = f"Step {number} is done, and the files of the next one were read."
        reply = sample_by_characters(model, text)
        keeper.keep_reply(prompt.context, reply, lambda _: False)
        conversation.append({"role": "assistant", "content": "".join(reply.texts)})
        conversation.append({"role": "user", "content": f"Go on with step {number + 1}."})
    return times[NUM_WARM_UPS:]


def sample_by_characters(model: ServedModel, text: str) -> SampledReply:
    """Return a reply in one token a character, as far as the vocabulary has them."""
    reply = SampledReply(is_complete=True)
    for char in text:
        tokens = model.vocab.tokenize(char, add_special=False, parse_special=False)
        piece = b"".join(map(model.vocab.token_bytes, tokens)).decode()
        reply.add(piece, tokens)
    return reply


def make_rows(times: list[TurnTimes]) -> list[Row]:
    """Return what is measured."""
    return [
        Row("one rendering (not counted)", "ms", tuple(each.rendering_ms for each in times)),
        Row(
            "preparation",
            "ms",
            tuple(each.preparation_ms for each in times),
            Target("at most", MAX_MS),
        ),
    ]


if __name__ == "__main__":
    main()

"""The parts of a request, each alone: what a whole one cannot be faster than.

    python -m benchmarks.micro [--cases CASE ...] [--repeats N]

decode: a bare loop of one-token `llama_decode` calls · prefill: the same prompt in chunks of
several sizes · tokenise, render: the longest prompt of the agent day · protocol: that prompt to the
engine and one token back, over a socket pair. Each case runs in a process of its own, after a
warm-up.
"""

from __future__ import annotations

import contextlib
import functools
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tests.models import DEFAULT_TEMPLATE

from benchmarks.raw_prefill import draw_tokens
from benchmarks.report import (
    Row,
    Run,
    divide_rows,
    finish,
    make_parser,
    parse_arguments,
    read_page_cache,
)
from benchmarks.workloads.agent_day import make_agent_day
from milepost import libllama
from milepost.chat.conversation.conversation import make_conversation
from milepost.chat.conversation.rendered_prompt import RenderedPrompt
from milepost.chat.prompts.tokenizer import PromptTokenizer
from milepost.chat.templates.template import ChatTemplate, SpecialTexts
from milepost.protocol.framing import encode_frame, engine_reader, front_end_reader
from milepost.protocol.messages import Delta, Generate, GenerationParams, PromptInput, encode_tokens
from milepost.protocol.sampling import SamplingParams
from milepost.traces.trace import TraceRequest

NUM_DECODED = 128
NUM_PREFILLED = 4096
CHUNKS = (2048, 512, 128, 64)  # tokens per llama_decode call
CTX_SIZE = 8192
RECEIVE_BYTES = 1 << 20

Values = dict[str, list[float]]  # name of a row -> one value per repeat


def main() -> None:
    """Run the cases, each in a process of its own, and report all rows together."""
    parser = make_parser(__doc__ or "", repeats=5)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=tuple(CASES))
    parser.add_argument("--case", choices=CASES, help="measure one and print JSON; used inside")
    arguments = parse_arguments(parser)
    if arguments.case:
        measure, _ = CASES[arguments.case]
        print(json.dumps(measure(arguments.model, arguments.threads, arguments.repeats)))
        return
    read_page_cache(arguments.model)
    rows: list[Row] = []
    for case in arguments.cases:
        rows += run_case(case, arguments.model, arguments.threads, arguments.repeats)
    settings = {"threads": arguments.threads, "ctx_size": CTX_SIZE, "cases": arguments.cases}
    finish(Run("micro", arguments.model, settings, arguments.results), rows)


def run_case(case: str, model: Path, threads: int, repeats: int) -> list[Row]:
    """Return the rows of a case that a process of its own measures."""
    numbers = ("--threads", str(threads), "--repeats", str(repeats))
    command = [sys.executable, "-m", "benchmarks.micro", "--case", case, "--model", str(model)]
    done = subprocess.run([*command, *numbers], stdout=subprocess.PIPE, text=True, check=True)
    values: Values = json.loads(done.stdout)
    unit = CASES[case][1]
    rows = [Row(name, unit, tuple(row)) for name, row in values.items()]
    if case != "prefill":
        return rows
    whole, *parts = rows
    return rows + [divide_rows(f"{part.name} / of {CHUNKS[0]}", part, whole) for part in parts]


def measure_decode(model: Path, threads: int, repeats: int) -> Values:
    """Measure a loop of one-token calls, after a short prompt."""
    rates = []
    with open_context(model, threads) as context:
        batch = libllama.Batch(libllama.open_library(), max(CHUNKS))
        for _ in range(repeats + 1):
            context.clear_sequences()
            start = prefill(context, batch, draw_tokens(64, seed=0).tolist(), 64)
            started = time.perf_counter()
            for number in range(NUM_DECODED):
                batch.clear_rows()
                row = batch.add_token(100, start + number, 0)
                context.decode(batch)
                context.logits(row)
            rates.append(NUM_DECODED / (time.perf_counter() - started))
    return {"raw decode loop": rates[1:]}


def measure_prefill(model: Path, threads: int, repeats: int) -> Values:
    """Measure the same prompt in chunks of each size, taking turns."""
    rates: Values = {f"prefill, chunks of {size}": [] for size in CHUNKS}
    tokens = draw_tokens(NUM_PREFILLED, seed=1).tolist()
    with open_context(model, threads) as context:
        batch = libllama.Batch(libllama.open_library(), max(CHUNKS))
        prefill(context, batch, tokens[:512], 512)
        for _ in range(repeats):
            for size in CHUNKS:
                context.clear_sequences()
                started = time.perf_counter()
                prefill(context, batch, tokens, size)
                rates[f"prefill, chunks of {size}"].append(
                    NUM_PREFILLED / (time.perf_counter() - started)
                )
    return rates


def measure_tokenising(model: Path, _: int, repeats: int) -> Values:
    """Measure the vocabulary alone, and the prompt tokeniser at a first and at a next turn."""
    with open_vocabulary(model) as loaded:
        vocab, template, request = loaded.vocab, load_template(loaded.vocab), longest_request()
        text = render(template, request)
        last_turn = render(template, replace(request, messages=request.messages[:-2]))
        num_tokens, num_known = (
            len(PromptTokenizer(vocab).tokenize_prompt(prompt)) for prompt in (text, last_turn)
        )
        plain = text.text
        alone = take_ms(
            repeats, lambda: vocab.tokenize(plain, add_special=False, parse_special=True)
        )
        firsts: list[float] = []
        nexts: list[float] = []
        for _ in range(repeats):
            tokenizer = PromptTokenizer(vocab)
            for prompt, values in ((last_turn, firsts), (text, nexts)):
                started = time.perf_counter()
                tokenizer.tokenize_prompt(prompt)
                values.append((time.perf_counter() - started) * 1000)
        return {
            f"vocabulary alone, {num_tokens:,} tokens": alone,
            f"prompt tokeniser, first turn of {num_known:,} tokens": firsts,
            f"prompt tokeniser, next turn of {num_tokens - num_known:,} tokens": nexts,
        }


def measure_rendering(model: Path, _: int, repeats: int) -> Values:
    """Measure checking and rendering of a conversation."""
    with open_vocabulary(model) as loaded:
        template = load_template(loaded.vocab)
        request = longest_request()
        conversation = make_conversation(request.messages, request.tools)
        count = len(request.messages)
        return {
            f"check {count} messages": take_ms(
                repeats, lambda: make_conversation(request.messages, request.tools)
            ),
            f"render {count} messages": take_ms(
                repeats,
                lambda: template.render(conversation, add_generation_prompt=True, kwargs={}),
            ),
        }


def measure_protocol(_: Path, __: int, repeats: int) -> Values:
    """Measure a round trip of messages between two sockets in one process."""
    ours, theirs = socket.socketpair()
    to_engine, from_engine = front_end_reader(), engine_reader()
    prompts = {count: draw_tokens(count, seed=2) for count in (64, 30_000)}
    answer = Delta(request_id=1, text=" word", tokens=(100,))

    def go_round(prompt: Any) -> None:
        params = GenerationParams(sampling=SamplingParams(), max_tokens=16)
        frame = encode_frame(
            Generate(request_id=1, prompt=PromptInput(tokens=encode_tokens(prompt)), params=params)
        )
        transfer(ours, theirs, frame, to_engine)
        transfer(theirs, ours, encode_frame(answer), from_engine)

    with ours, theirs:
        return {
            f"round trip, {count:,} tokens": take_ms(
                repeats, functools.partial(go_round, prompt), calls=200
            )
            for count, prompt in prompts.items()
        }


def transfer(source: socket.socket, target: socket.socket, frame: bytes, reader: Any) -> None:
    """Send a frame and read it on the other side; both are ours, so never more than fits."""
    sent = 0
    source.setblocking(False)
    while sent < len(frame):
        sent += source.send(frame[sent : sent + (1 << 16)])
        for _ in reader.feed(target.recv(RECEIVE_BYTES)):
            return


def take_ms(repeats: int, call: Callable[[], object], calls: int = 3) -> list[float]:
    """Return the milliseconds of a call in each repeat, after a warm-up, as the mean of several."""
    call()
    values = []
    for _ in range(repeats):
        started = time.perf_counter()
        for _ in range(calls):
            call()
        values.append((time.perf_counter() - started) * 1000 / calls)
    return values


def longest_request() -> TraceRequest:
    """Return the request of the agent day with the most text."""
    return max(
        (request for request in make_agent_day().requests() if not request.needs),
        key=lambda request: len(json.dumps(request.messages)),
    )


def load_template(vocab: libllama.Vocab) -> ChatTemplate:
    """Return the template of the tests' models, with tools, reasoning and this vocabulary."""
    return ChatTemplate(DEFAULT_TEMPLATE, name="chatml", texts=SpecialTexts.of(vocab))


def render(template: ChatTemplate, request: TraceRequest) -> RenderedPrompt:
    """Return the prompt of a request."""
    conversation = make_conversation(request.messages, request.tools)
    return template.render(conversation, add_generation_prompt=True, kwargs={})


@contextlib.contextmanager
def open_context(model: Path, threads: int) -> Iterator[libllama.Context]:
    """Load a model and make a context for one sequence."""
    params = libllama.ContextParams(
        num_context_tokens=CTX_SIZE,
        num_batch_tokens=max(CHUNKS),
        num_ubatch_tokens=512,
        num_sequences=1,
        num_threads=threads,
        num_threads_batch=threads,
    )
    with (
        libllama.Model(libllama.open_library(), model, libllama.ModelParams()) as loaded,
        libllama.Context(loaded, params) as context,
    ):
        yield context


def open_vocabulary(model: Path) -> libllama.Model:
    """Load the vocabulary of a model."""
    return libllama.Model(libllama.open_library(), model, libllama.ModelParams(vocab_only=True))


def prefill(context: libllama.Context, batch: libllama.Batch, tokens: list[int], chunk: int) -> int:
    """Decode a prompt in chunks and wait for it; return its length."""
    row = 0
    for start in range(0, len(tokens), chunk):
        part = np.array(tokens[start : start + chunk], np.int32)
        batch.clear_rows()
        row = batch.add_tokens(part, start, 0, wants_last=start + chunk >= len(tokens))
        context.decode(batch)
    context.logits(row)
    return len(tokens)


CASES: dict[str, tuple[Callable[[Path, int, int], Values], str]] = {
    "decode": (measure_decode, "tokens/s"),
    "prefill": (measure_prefill, "tokens/s"),
    "tokenise": (measure_tokenising, "ms"),
    "render": (measure_rendering, "ms"),
    "protocol": (measure_protocol, "ms"),
}

if __name__ == "__main__":
    main()

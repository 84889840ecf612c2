"""The next turn of a long conversation after a restart, against its cold prefill.

    python -m benchmarks.disk_restore [--kinds KIND ...] [--repeats N] [--tokens N]

milepost: a conversation is answered, the server ended and started again, and the next turn asked;
nothing else is called. llama-server, beside it: the same, with its slot saved by a call before the
end and restored by another one after the start, which is part of the time. Before each restart
what the server wrote is dropped from the page cache, so that it is read from the disk. Times are
from the request to the first text, at the client; each repeat has a fresh folder.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.models import write_benchmark_model
from benchmarks.report import (
    Row,
    Run,
    Target,
    divide_rows,
    finish,
    make_kinds_parser,
    read_page_cache,
)
from benchmarks.streaming import read_stream
from benchmarks.workloads.long_conversation import Message, make_body, make_conversation
from milepost.bench.servers import ServedModel, ServerProcess, make_milepost, make_upstream

CTX_SIZE = 40960
PARALLEL = 1
MAX_SHARE = 0.05  # of a cold prefill
SLOT_FILE = "slot.bin"
NEXT_TURN = [
    {"role": "assistant", "content": "That is done."},
    {"role": "user", "content": "Then go on with the next part, and say what changed."},
]


@dataclass(frozen=True, slots=True)
class Times:
    """Of one repeat on one server."""

    cold_s: float
    resumed_s: float  # with the call that restores, where one is needed
    num_computed: int  # tokens of the next turn that were prefilled


def main() -> None:
    """Measure each memory kind and report the share of a cold prefill."""
    parser = make_kinds_parser(__doc__ or "", repeats=3, kinds=("hybrid", "window", "full"))
    parser.add_argument("--messages", type=int, default=290, help="default: %(default)s")
    parser.add_argument("--tokens", type=int, default=30_000, help="about; default: %(default)s")
    arguments = parser.parse_args()
    conversation = make_conversation("harbour", arguments.messages, arguments.tokens)
    for kind in arguments.kinds:
        with tempfile.TemporaryDirectory() as folder:
            model = write_benchmark_model(kind, Path(folder))
            read_page_cache(model)
            served = ServedModel(
                model=str(model), ctx_size=CTX_SIZE, parallel=PARALLEL, threads=arguments.threads
            )
            times = measure_kind(served, list(conversation), arguments.repeats)
            settings = {"kind": kind, "messages": len(conversation), **served.describe()}
            finish(Run(f"disk_restore-{kind}", model, settings, arguments.results), times)


def measure_kind(served: ServedModel, conversation: list[Message], repeats: int) -> list[Row]:
    """Return the rows of both servers, which take turns."""
    ours: list[Times] = []
    theirs: list[Times] = []
    for _ in range(repeats):
        ours.append(measure_milepost(served, conversation))
        theirs.append(measure_upstream(served, conversation))
    target = Target("at most", MAX_SHARE)
    return [*make_rows("milepost", ours, target), *make_rows("llama-server", theirs, None)]


def make_rows(name: str, times: list[Times], target: Target | None) -> list[Row]:
    """Return what one server took."""
    cold = Row(f"{name}, cold", "s", tuple(each.cold_s for each in times))
    resumed = Row(f"{name}, resumed", "s", tuple(each.resumed_s for each in times))
    computed = tuple(float(each.num_computed) for each in times)
    return [
        cold,
        resumed,
        divide_rows(f"{name}, resumed / cold", resumed, cold, target),
        Row(f"{name}, tokens computed after it", "tokens", computed),
    ]


def measure_milepost(served: ServedModel, conversation: list[Message]) -> Times:
    """Answer, restart, go on."""
    with tempfile.TemporaryDirectory() as folder, make_milepost(served, Path(folder)) as server:
        cold_s, _ = ask(server, conversation)
        server.stop()
        drop_page_cache(Path(folder))
        server.start()
        return Times(cold_s, *ask(server, [*conversation, *NEXT_TURN]))


def measure_upstream(served: ServedModel, conversation: list[Message]) -> Times:
    """Answer, save the slot, restart, restore it, go on."""
    with tempfile.TemporaryDirectory() as folder:
        with_slots = msgspec.structs.replace(served, slot_save_path=folder)
        with make_upstream(with_slots, Path(folder)) as server:
            cold_s, _ = ask(server, conversation)
            call_slot(server, "save")
            server.stop()
            drop_page_cache(Path(folder))
            server.start()
            restored_s = call_slot(server, "restore")
            resumed_s, num_computed = ask(server, [*conversation, *NEXT_TURN])
            return Times(cold_s, restored_s + resumed_s, num_computed)


def ask(server: ServerProcess, messages: list[Message]) -> tuple[float, int]:
    """Return the seconds until the first text of an answer, and the tokens computed for it."""
    times = read_stream(server.url, make_body(messages, 4))
    return times.first - times.sent, times.num_computed


def call_slot(server: ServerProcess, action: str) -> float:
    """Call an action of the slot API; return the seconds that it took."""
    request = urllib.request.Request(
        f"{server.url}/slots/0?action={action}",
        data=json.dumps({"filename": SLOT_FILE}).encode(),
        headers={"Content-Type": "application/json"},
    )
    started = time.perf_counter()
    with urllib.request.urlopen(request) as response:
        response.read()
    return time.perf_counter() - started


def drop_page_cache(folder: Path) -> None:
    """Have the next reads of all files below a folder come from the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    main()

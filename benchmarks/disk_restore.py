"""The next turn of a long conversation after a restart, against its cold prefill.

    python -m benchmarks.disk_restore [--kinds KIND ...] [--repeats N] [--tokens N]

milepost: a conversation is answered, the server ended and started again, and the next turn asked;
nothing else is called. llama-server, beside it: the same, with its slot saved by a call before the
end and restored by another one after the start, which is part of the time. Before each restart
what the server wrote is dropped from the page cache, so that it is read from the disk. Times are
from the request to the first text, at the client; each repeat has a fresh folder.

The speed of a restore is that of the engine, from the index's rows to cells and state in the
context. Beside it, the same number of bytes is read from the same files into memory, and nothing
done with them; both from the disk and, after one more restart, from the page cache. Where the two
read at about the same speed, the system did not drop what it was asked to.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

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
from benchmarks.workloads.long_conversation import make_body, make_conversation
from milepost.bench.servers import ServedModel, ServerProcess, make_milepost, make_upstream
from milepost.traces.trace import Message

CTX_SIZE = 40960
PARALLEL = 1
MAX_SHARE = 0.05  # of a cold prefill
MIN_SPEED_SHARE = 0.7  # of reading the same bytes into memory
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


@dataclass(frozen=True, slots=True)
class Speeds:
    """Of one repeat, in MB/s."""

    restored: float
    read: float


@dataclass(frozen=True, slots=True)
class OwnTimes(Times):
    """Those of milepost."""

    from_disk: Speeds
    from_page_cache: Speeds


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
    ours: list[OwnTimes] = []
    theirs: list[Times] = []
    for _ in range(repeats):
        ours.append(measure_milepost(served, conversation))
        theirs.append(measure_upstream(served, conversation))
    target = Target("at most", MAX_SHARE)
    return [
        *make_rows("milepost", ours, target),
        *make_rows("llama-server", theirs, None),
        *make_speed_rows("disk", [each.from_disk for each in ours]),
        *make_speed_rows("page cache", [each.from_page_cache for each in ours]),
    ]


def make_rows(name: str, times: Sequence[Times], target: Target | None) -> list[Row]:
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


def make_speed_rows(source: str, speeds: list[Speeds]) -> list[Row]:
    """Return how fast milepost restored from somewhere, and how fast that can be read."""
    restored = Row(f"restored, {source}", "MB/s", tuple(each.restored for each in speeds))
    read = Row(f"only read, {source}", "MB/s", tuple(each.read for each in speeds))
    target = Target("at least", MIN_SPEED_SHARE)
    return [restored, read, divide_rows(f"restored / only read, {source}", restored, read, target)]


def measure_milepost(served: ServedModel, conversation: list[Message]) -> OwnTimes:
    """Answer, restart, go on; and once more with the files in the page cache."""
    with tempfile.TemporaryDirectory() as name, make_milepost(served, Path(name)) as server:
        folder, longer = Path(name), [*conversation, *NEXT_TURN]
        cold_s, _ = ask(server, conversation)
        server.stop()
        drop_page_cache(folder)
        server.start()
        resumed_s, num_computed = ask(server, longer)
        cold_restore = read_restore(server)
        server.stop()
        drop_page_cache(folder)
        from_disk = compare_speeds(cold_restore, folder)
        from_page_cache = measure_warm(server, folder, [*longer, *NEXT_TURN])
        return OwnTimes(cold_s, resumed_s, num_computed, from_disk, from_page_cache)


def measure_warm(server: ServerProcess, folder: Path, messages: list[Message]) -> Speeds:
    """Start a server again whose files have just been read; return the speeds of a restore."""
    server.start()
    for path in find_blobs(folder):
        read_page_cache(path)
    ask(server, messages)
    restore = read_restore(server)
    server.stop()
    for path in find_blobs(folder):
        read_page_cache(path)
    return compare_speeds(restore, folder)


def read_restore(server: ServerProcess) -> tuple[int, float]:
    """Return the bytes and the seconds of the restore of the last request, in the engine."""
    (latest, *_) = get_json(f"{server.url}/requests")["requests"]
    (report,) = get_json(f"{server.url}/requests/{latest['id']}/why")["prompts"]
    assert report["facts"]["source"] == "disk", report["facts"]
    return report["facts"]["restored_bytes"], report["facts"]["restore_ms"] / 1000


def compare_speeds(restore: tuple[int, float], folder: Path) -> Speeds:
    """Read as many bytes as a restore did, as they lie in the files, into fresh memory."""
    num_bytes, restored_s = restore
    num_read, started = 0, time.perf_counter()
    for path in find_blobs(folder):
        size = min(path.stat().st_size, num_bytes - num_read)
        if size <= 0:
            break
        with path.open("rb", buffering=0) as file:
            num_read += file.readinto(np.empty(size, np.uint8).data)
    read_s = time.perf_counter() - started
    return Speeds(num_bytes / restored_s / 1e6, num_read / read_s / 1e6)


def find_blobs(folder: Path) -> list[Path]:
    """Return the files of all states below a folder, the largest first."""
    return sorted(folder.rglob("blobs/*/*"), key=lambda path: -path.stat().st_size)


def get_json(url: str) -> Any:
    """Return the body of an answer."""
    with urllib.request.urlopen(url) as response:
        return json.load(response)


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

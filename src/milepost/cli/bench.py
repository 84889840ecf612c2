"""`milepost bench`: replays traces of agents on servers. Parses; `milepost.bench` does the work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
FILE = click.Path(path_type=Path, dir_okay=False)


@click.group(
    "bench",
    help="Replay recorded requests of agents, and say what was computed twice.",
    context_settings=HELP,
)
def bench_group() -> None:
    """Hold the subcommands."""


@bench_group.command("replay", context_settings=HELP)
@click.argument("trace", type=FILE)
@click.option("--url", required=True, metavar="URL", help="Server to measure.")
@click.option(
    "--api-key", default="", envvar="MILEPOST_BENCH_API_KEY", metavar="KEY", help="Its key."
)
@click.option("--model", default="", metavar="NAME", help="Model name to ask for. [default: first]")
@click.option(
    "--closed", is_flag=True, help="Go on from the server's own replies, not the recorded ones."
)
@click.option(
    "--concurrency",
    default=1,
    show_default=True,
    type=click.IntRange(min=1),
    help="Sessions to replay side by side; each keeps its order.",
)
@click.option(
    "--max-tokens",
    default=16,
    show_default=True,
    type=click.IntRange(min=1),
    help="Longest answer, in tokens.",
)
@click.option(
    "--max-requests",
    default=None,
    metavar="N",
    type=click.IntRange(min=1),
    help="Stop after so many requests. [default: all]",
)
@click.option(
    "--restart-command",
    default="",
    metavar="COMMAND",
    help="Shell command that restarts the server, where the trace has a restart.",
)
@click.option("--json", "json_path", default=None, type=FILE, help="Write all numbers to FILE.")
@click.option("--each", is_flag=True, help="Show every request.")
def replay_command(**given: Any) -> int:
    """Replay TRACE on a running server, and show what it prefilled and what was needed.

    Ctrl-C ends the replay and shows what is known by then. The exit status is 1 when a request
    failed.
    """
    from milepost.bench.command import ReplayCommand, run_replay
    from milepost.bench.replay import ReplayOptions
    from milepost.bench.restart import restart_by_command

    command = given["restart_command"]
    options = ReplayOptions(
        closed=given["closed"],
        concurrency=given["concurrency"],
        max_tokens=given["max_tokens"],
        max_requests=given["max_requests"],
        restart=restart_by_command(command) if command else None,
    )
    return run_replay(
        ReplayCommand(
            trace=given["trace"],
            url=given["url"],
            api_key=given["api_key"],
            model=given["model"],
            options=options,
            json_path=given["json_path"],
            with_requests=given["each"],
        )
    )


@bench_group.command("redact", context_settings=HELP)
@click.argument("trace", type=FILE)
@click.option("-o", "--output", required=True, type=FILE, help="Trace to write; must not exist.")
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="TEXT",
    help="Name to replace: a person, company, host or project. May be given several times.",
)
@click.option(
    "--path",
    "paths",
    multiple=True,
    metavar="FOLDER",
    help="Folder to replace. May be given several times.",
)
def redact_command(
    trace: Path, output: Path, names: tuple[str, ...], paths: tuple[str, ...]
) -> None:
    """Replace names, paths and addresses in TRACE.

    User names are found in the paths of home folders; e-mail, IP and MAC addresses and API keys by
    their form. Read the result before you give it to anybody: nothing else is found without
    --name and --path.
    """
    from milepost.traces.redact import RedactionRules, redact_file

    replaced = redact_file(trace, output, RedactionRules(names=names, paths=paths))
    for found, placeholder in replaced.items():
        is_key = placeholder.startswith("key-")  # not for the screen, nor for a log
        click.echo(f"{found[:4] + '...' if is_key else found} -> {placeholder}")
    click.echo(f"{len(replaced)} texts were replaced; read {output} before you give it to anybody")


@bench_group.command("compare", context_settings=HELP)
@click.argument("traces", type=FILE, nargs=-1, required=True, metavar="TRACE...")
@click.option("-m", "--model", required=True, type=FILE, help="GGUF file that all servers load.")
@click.option(
    "-c",
    "--ctx-size",
    default=40960,
    show_default=True,
    type=click.IntRange(min=1),
    help="Context in tokens; a day of an agent needs 36,000.",
)
@click.option(
    "-np",
    "--parallel",
    default=4,
    show_default=True,
    type=click.IntRange(min=1),
    help="Slots of each server.",
)
@click.option(
    "-t",
    "--threads",
    default=None,
    type=click.IntRange(min=1),
    help="Threads of each server. [default: physical cores]",
)
@click.option("-b", "--batch-size", default=2048, show_default=True, type=click.IntRange(min=1))
@click.option("-ub", "--ubatch-size", default=512, show_default=True, type=click.IntRange(min=1))
@click.option(
    "--cache-ram",
    default=None,
    metavar="MIB",
    type=click.IntRange(min=0),
    help="RAM for the cache of each server. [default: each server's own]",
)
@click.option(
    "--ctx-checkpoints",
    default=None,
    metavar="N",
    type=click.IntRange(min=0),
    help="Checkpoints of each slot. [default: each server's own]",
)
@click.option(
    "--checkpoint-min-step",
    default=None,
    metavar="N",
    type=click.IntRange(min=0),
    help="Tokens between checkpoints. [default: each server's own]",
)
@click.option(
    "--chat-template-file", default=None, type=FILE, help="Template instead of the model's own."
)
@click.option("--mmproj", default=None, type=FILE, help="Projector, for traces with images.")
@click.option(
    "--server",
    "servers",
    multiple=True,
    type=click.Choice(["milepost", "llama-server"]),
    help="Measure this server only. May be given several times.",
)
@click.option(
    "--closed", is_flag=True, help="Go on from the server's own replies, not the recorded ones."
)
@click.option("--concurrency", default=1, show_default=True, type=click.IntRange(min=1))
@click.option("--max-tokens", default=16, show_default=True, type=click.IntRange(min=1))
@click.option("--max-requests", default=None, metavar="N", type=click.IntRange(min=1))
@click.option(
    "-o",
    "--output",
    default=None,
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep all numbers and the plots in FOLDER.",
)
@click.option("--plots/--no-plots", default=True, show_default=True, help="Draw PNG and SVG.")
def compare_command(**given: Any) -> int:
    """Replay each TRACE on milepost and on llama.cpp's own server, one after the other.

    Both are started here, with the same model, settings and library; nothing else should compute
    on the machine. Ctrl-C ends the comparison and shows what is known by then. The exit status is
    1 when a request failed.
    """
    from milepost.bench.compare import CompareCommand, run_compare
    from milepost.bench.machine import count_physical_cores
    from milepost.bench.replay import ReplayOptions
    from milepost.bench.servers import SERVERS, ServedModel

    template, projector = given["chat_template_file"], given["mmproj"]
    served = ServedModel(
        model=str(given["model"]),
        ctx_size=given["ctx_size"],
        parallel=given["parallel"],
        threads=given["threads"] or count_physical_cores(),
        batch_size=given["batch_size"],
        ubatch_size=given["ubatch_size"],
        cache_ram_mib=given["cache_ram"],
        ctx_checkpoints=given["ctx_checkpoints"],
        checkpoint_min_step=given["checkpoint_min_step"],
        chat_template_file=None if template is None else str(template),
        mmproj=None if projector is None else str(projector),
    )
    options = ReplayOptions(
        closed=given["closed"],
        concurrency=given["concurrency"],
        max_tokens=given["max_tokens"],
        max_requests=given["max_requests"],
    )
    return run_compare(
        CompareCommand(
            traces=given["traces"],
            served=served,
            servers=given["servers"] or tuple(SERVERS),
            options=options,
            output=given["output"],
            with_plots=given["plots"],
        )
    )

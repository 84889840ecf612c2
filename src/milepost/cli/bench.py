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
    from milepost.bench.redact import RedactionRules, redact_file

    replaced = redact_file(trace, output, RedactionRules(names=names, paths=paths))
    for found, placeholder in replaced.items():
        is_key = placeholder.startswith("key-")  # not for the screen, nor for a log
        click.echo(f"{found[:4] + '...' if is_key else found} -> {placeholder}")
    click.echo(f"{len(replaced)} texts were replaced; read {output} before you give it to anybody")

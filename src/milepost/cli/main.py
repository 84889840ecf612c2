"""The program `milepost`: finds the subcommand and turns errors into one sentence and a status.

Nothing heavy is imported here, or by what this imports: `milepost --help` is quick.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from milepost.cli.version import describe_version
from milepost.errors import ConfigurationError, DiskCacheUnusable

COMMANDS = {
    "bench": "Replay recorded requests of agents, and say what was computed twice.",
    "cache": "Show, check and empty the cache on disk.",
    "probe": "Show what is learnt from a chat template: reasoning, tool calls, messages.",
    "serve": "Serve a GGUF model over HTTP.",
    "warm": "Have a server compute system prompts and tools ahead of time.",
}
EXIT_FAILED = 1
EXIT_USAGE = 2


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(describe_version())
        ctx.exit()


class LazyGroup(click.Group):
    """A group that imports a subcommand when it is asked for, so that its own help is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the subcommands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a subcommand, or None if there is none of that name."""
        if cmd_name == "serve":
            from milepost.cli.serve import serve_command

            return serve_command
        if cmd_name == "bench":
            from milepost.cli.bench import bench_group

            return bench_group
        if cmd_name == "cache":
            from milepost.cli.cache import cache_group

            return cache_group
        if cmd_name == "probe":
            from milepost.cli.probe import probe_command

            return probe_command
        if cmd_name == "warm":
            from milepost.cli.warm import warm_command

            return warm_command
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of subcommands without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


@click.group(
    cls=LazyGroup,
    help="An LLM inference server for coding agents: no token is prefilled twice.",
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the versions of milepost and its native library.",
)
@click.pass_context
def program(ctx: click.Context) -> None:
    """Show the help when no subcommand is given."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit status: 2 for wrong usage, 1 for what cannot work."""
    try:
        status = program.main(arguments, prog_name="milepost", standalone_mode=False)
        return int(status or 0)
    except click.ClickException as error:
        _complain(error.format_message())
        return EXIT_USAGE
    except (ConfigurationError, DiskCacheUnusable) as error:
        _complain(str(error))
        return EXIT_FAILED
    except (click.Abort, KeyboardInterrupt):
        return 128 + 2  # as a shell reports a program that SIGINT ended


def main() -> None:
    """Entry point of the installed program."""
    sys.exit(run())


def _complain(sentence: str) -> None:
    click.echo(f"milepost: error: {sentence}", err=True)


if __name__ == "__main__":
    main()

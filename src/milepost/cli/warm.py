"""`milepost warm`: computes system prompts ahead of time; `milepost.client.warming` does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
DEFAULT_URL = "http://127.0.0.1:8080"


@click.command("warm", context_settings=HELP)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--url", default=DEFAULT_URL, show_default=True, metavar="URL", help="The server.")
@click.option("--api-key", default="", envvar="MILEPOST_API_KEY", metavar="KEY", help="Its key.")
@click.option("--model", default="", metavar="NAME", help="Model name to ask for. [default: first]")
def warm_command(**given: Any) -> None:
    """Have a running server compute what conversations will begin with.

    FILE is a trace (each system prompt with its tools once), the JSON body of a chat request, or a
    text: the system prompt.
    """
    from milepost.client.server_client import ServerClient
    from milepost.client.warming import describe_warmed, run_warm

    server = ServerClient(given["url"], api_key=given["api_key"], model=given["model"])
    run_warm(given["file"], server, lambda warmed: click.echo(describe_warmed(warmed)))

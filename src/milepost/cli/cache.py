"""`milepost cache`: shows, checks and empties the disk cache, also beside a running server.

It parses and prints; `milepost.cache.disk.admin` does the work.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from milepost.config.cache_folder import default_cache_folder

if TYPE_CHECKING:
    from milepost.cache.disk.admin import FolderSummary, Verdict
    from milepost.cache.disk.stored_forest import StoredBlob

HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
GIB = 1 << 30
SECONDS_PER_DAY = 86400
MAX_SHOWN = 50

Command = TypeVar("Command", bound=Callable[..., Any])


def _with_folder(command: Command) -> Command:
    """Give a command the options that all of them have."""
    add_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    add_folder = click.option(
        "--cache-dir",
        "root",
        type=click.Path(path_type=Path, file_okay=False),
        default=lambda: default_cache_folder(os.environ, sys.platform, Path.home()),
        show_default="the platform's folder for caches",
        metavar="FOLDER",
        help="Cache folder.",
    )
    return add_folder(add_json(command))


@click.group("cache", help="Show, check and empty the cache on disk.", context_settings=HELP)
def cache_group() -> None:
    """Hold the subcommands."""


@cache_group.command("ls", context_settings=HELP)
@_with_folder
def list_command(root: Path, as_json: bool) -> None:
    """List the folders: one for each model, with the settings that change its states."""
    summaries = _summarise(root)
    if as_json:
        _print_json([_describe_summary(summary) for summary in summaries])
        return
    rows = [
        (
            summary.name[:12],
            _describe_model(summary.fingerprint),
            summary.num_segments,
            summary.num_checkpoints,
            _format_bytes(summary.num_bytes),
            _format_age(summary.last_used_s),
            summary.problem,
        )
        for summary in summaries
    ]
    headings = ("folder", "model", "segments", "checkpoints", "size", "last used", "problem")
    _print_table(str(root), headings, rows)


@cache_group.command("show", context_settings=HELP)
@click.argument("folder")
@click.option("--all", "is_all", is_flag=True, help=f"Show all, not only {MAX_SHOWN}.")
@_with_folder
def show_command(root: Path, folder: str, is_all: bool, as_json: bool) -> None:
    """Show what FOLDER (its name, or how it begins) holds, the latest first."""
    from milepost.cache.disk.admin import find_folder, load_folder

    path = find_folder(root, folder)
    forest = load_folder(path)
    blobs = sorted(forest.blobs, key=lambda blob: (-blob.last_used_s, blob.end))
    if as_json:
        _print_json([_describe_blob(blob) for blob in blobs])
        return
    shown = blobs if is_all else blobs[:MAX_SHOWN]
    rows = [
        (
            f"{blob.id:016x}",
            blob.name or blob.kind,
            f"{blob.start}-{blob.end}",
            _format_bytes(blob.file_bytes),
            _format_age(blob.last_used_s),
            blob.num_hits,
        )
        for blob in shown
    ]
    _print_table(path.name, ("id", "what", "tokens", "size", "last used", "uses"), rows)
    click.echo(f"{len(shown)} of {len(blobs)} are shown; {len(forest.pins)} places are pinned")


@cache_group.command("verify", context_settings=HELP)
@click.argument("folder", required=False)
@click.option("--remove", is_flag=True, help="Remove what is damaged.")
@_with_folder
def verify_command(root: Path, folder: str | None, remove: bool, as_json: bool) -> int:
    """Read and check every byte of FOLDER, or of all; the exit status is 1 if any is damaged."""
    from milepost.cache.disk.admin import Verdict, remove_blobs, verify_folder

    num_whole, damaged = 0, []
    for path in _choose_folders(root, folder):
        verdicts = list(verify_folder(path))
        bad = [found for found in verdicts if isinstance(found, Verdict)]
        num_whole += len(verdicts) - len(bad)
        damaged += [(path, verdict) for verdict in bad]
        if remove and bad:
            remove_blobs(path, [verdict.blob for verdict in bad])
    _print_verdicts(num_whole, damaged, as_json)
    return 1 if damaged else 0


@cache_group.command("prune", context_settings=HELP)
@click.argument("folder", required=False)
@click.option(
    "--max-size", type=click.FloatRange(min=0), metavar="GIB", help="Keep so much of each folder."
)
@click.option(
    "--older-than",
    type=click.FloatRange(min=0),
    metavar="DAYS",
    help="Remove what was unused since.",
)
@click.option("--dry-run", is_flag=True, help="Remove nothing, say what would be.")
@_with_folder
def prune_command(
    root: Path,
    folder: str | None,
    max_size: float | None,
    older_than: float | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove what was used longest ago from FOLDER, or from all."""
    from milepost.cache.disk.admin import choose_pruned, load_folder, remove_blobs

    if max_size is None and older_than is None:
        raise click.UsageError("give --max-size or --older-than")
    max_bytes = sys.maxsize if max_size is None else int(max_size * GIB)
    min_used_s = 0.0 if older_than is None else time.time() - older_than * SECONDS_PER_DAY
    num_blobs = num_bytes = 0
    for path in _choose_folders(root, folder):
        pruned = choose_pruned(load_folder(path), max_bytes, min_used_s)
        num_blobs += len(pruned)
        num_bytes += sum(blob.file_bytes for blob in pruned)
        if pruned and not dry_run:
            remove_blobs(path, pruned)
    _print_removed(num_blobs, num_bytes, dry_run, as_json)


@cache_group.command("purge", context_settings=HELP)
@click.argument("folder", required=False)
@click.option("--yes", is_flag=True, help="Do not ask.")
@_with_folder
def purge_command(root: Path, folder: str | None, yes: bool, as_json: bool) -> None:
    """Remove every state and token of FOLDER, or of all."""
    from milepost.cache.disk.admin import purge_folder

    paths = _choose_folders(root, folder)
    summaries = [summary for summary in _summarise(root) if root / summary.name in paths]
    num_blobs = sum(
        summary.num_segments + summary.num_checkpoints + summary.num_logits for summary in summaries
    )
    num_bytes = sum(summary.num_bytes for summary in summaries)
    if not yes:
        click.confirm(f"Remove {_format_bytes(num_bytes)} in {root}?", abort=True, err=True)
    for path in paths:
        purge_folder(path)
    _print_removed(num_blobs, num_bytes, False, as_json)


@cache_group.command("stats", context_settings=HELP)
@_with_folder
def stats_command(root: Path, as_json: bool) -> None:
    """Show totals, what was written today, and how full the volume is."""
    import shutil

    summaries = _summarise(root)
    totals = {
        "folders": len(summaries),
        "segments": sum(summary.num_segments for summary in summaries),
        "checkpoints": sum(summary.num_checkpoints for summary in summaries),
        "logits": sum(summary.num_logits for summary in summaries),
        "bytes": sum(summary.num_bytes for summary in summaries),
        "written_today_bytes": sum(summary.written_today_bytes for summary in summaries),
    }
    if root.exists():
        totals["volume_free_bytes"] = shutil.disk_usage(root).free
    if as_json:
        _print_json(totals)
        return
    rows = [
        (key.removesuffix("_bytes").replace("_", " "), _format_bytes(value))
        if key.endswith("bytes")
        else (key, value)
        for key, value in totals.items()
    ]
    _print_table(str(root), ("", ""), rows)


# --- private -----------------------------------------------------------------------------


def _choose_folders(root: Path, beginning: str | None) -> list[Path]:
    from milepost.cache.disk.admin import find_folder, find_folders

    return find_folders(root) if beginning is None else [find_folder(root, beginning)]


def _summarise(root: Path) -> list[FolderSummary]:
    from milepost.cache.disk.admin import find_folders, summarise_folder

    return [summarise_folder(path, time.time()) for path in find_folders(root)]


def _describe_summary(summary: FolderSummary) -> dict[str, Any]:
    import dataclasses

    described = dataclasses.asdict(summary)
    described["fingerprint"] = json.loads(summary.fingerprint or "null")
    return described


def _describe_blob(blob: StoredBlob) -> dict[str, Any]:
    described = blob._asdict()
    described["id"] = f"{blob.id:016x}"
    return described | {"history": blob.history.hex(), "checksum": blob.checksum.hex()}


def _describe_model(fingerprint: str) -> str:
    """Return what a person may know a model by; its name is not part of what changes bytes."""
    try:
        fields = json.loads(fingerprint)
        num_bytes = sum(file["num_bytes"] for file in fields["model_files"])
        return f"{_format_bytes(num_bytes)}, {fields['memory_kind']}, KV {fields['type_k']}"
    except (ValueError, KeyError, TypeError):
        return "unknown"


def _print_verdicts(num_whole: int, damaged: list[tuple[Path, Verdict]], as_json: bool) -> None:
    if as_json:
        found = [
            {"folder": path.name, "id": f"{verdict.blob.id:016x}", "problem": verdict.problem}
            for path, verdict in damaged
        ]
        _print_json({"whole": num_whole, "damaged": found})
        return
    for path, verdict in damaged:
        click.echo(f"{path.name[:12]} {verdict.blob.id:016x}: {verdict.problem}")
    click.echo(f"{num_whole} are whole, {len(damaged)} are damaged")


def _print_removed(num_blobs: int, num_bytes: int, is_dry: bool, as_json: bool) -> None:
    if as_json:
        _print_json({"removed": num_blobs, "bytes": num_bytes, "dry_run": is_dry})
        return
    verb = "would be removed" if is_dry else "were removed"
    click.echo(f"{num_blobs} segments and checkpoints ({_format_bytes(num_bytes)}) {verb}")


def _print_table(title: str, headings: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left")
    for heading in headings:
        table.add_column(heading)
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    console = Console(highlight=False)
    if not console.is_terminal:  # so that a file or a pipe has each row on one line
        console.width = 160
    console.print(table)


def _print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=1))


def _format_bytes(num_bytes: int) -> str:
    value = num_bytes / 1024
    for unit in ("KiB", "MiB", "GiB"):
        if value < 1000:
            return f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _format_age(moment_s: float) -> str:
    if moment_s <= 0:
        return "-"
    age_s = max(0.0, time.time() - moment_s)
    for unit, seconds in (("d", SECONDS_PER_DAY), ("h", 3600), ("min", 60)):
        if age_s >= 2 * seconds:
            return f"{age_s / seconds:.0f} {unit} ago"
    return f"{age_s:.0f} s ago"

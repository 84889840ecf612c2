"""Fetches a model from a hub repository into the hub library's cache, or takes it from there.

Which file is taken is llama-server's rule (`choose_file`). The library, slow to import, is loaded
when the first function that needs it runs; it owns the progress bar, the cache and the retries,
and reads HF_ENDPOINT, HF_HOME and HF_TOKEN.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from milepost.cli.model_file import PART_NAME
from milepost.config import ModelSource
from milepost.errors import ConfigurationError

logger = logging.getLogger(__name__)

DEFAULT_QUANTS = ("Q4_K_M", "Q8_0")  # tried in this order; then the first file
PROJECTOR = "mmproj"
# Parts of names of GGUF files that are no language model by themselves.
SIDE_FILES = (PROJECTOR, "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
QUANT_BITS = re.compile(r"(?<![A-Za-z])(?:I?Q|BF|F|MXFP|TQ)(\d+)", re.IGNORECASE)  # Q4_K_M, F16


class HubFailed(ConfigurationError):
    """The hub, or its repository, does not have what was asked for."""


@dataclass(frozen=True, slots=True)
class _Listing:
    """The files of a repository, and whether they come from the cache."""

    files: tuple[str, ...]
    is_cached: bool


def fetch_model(source: ModelSource) -> Path:
    """Return the local path of the model that `source.hf_repo` names, fetching what is missing.

    Writes to the hub library's cache. Raises HubFailed with one sentence.
    """
    repo, quant = parse_repo(source.hf_repo)
    return _fetch_model(_list_files(repo, source), repo, quant, source)[0]


def fetch_with_projector(source: ModelSource) -> tuple[Path, Path | None]:
    """Return the local paths of a model and of the projector beside it, None if there is none.

    As `fetch_model` otherwise.
    """
    repo, quant = parse_repo(source.hf_repo)
    listing = _list_files(repo, source)
    path, chosen = _fetch_model(listing, repo, quant, source)
    projector = choose_projector(listing.files, chosen)
    if not projector:
        return path, None
    logger.info("projector %s of hub repository %s; --no-mmproj does without", projector, repo)
    return path, _fetch_file(repo, projector, source, listing)


def parse_repo(text: str) -> tuple[str, str]:
    """Return repository and quant of "user/repo[:quant]"; the quant may be empty."""
    repo, _, quant = text.partition(":")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise HubFailed(f"-hf {text} is not of the form user/repo or user/repo:quant")
    return repo, quant


def choose_file(files: Sequence[str], quant: str) -> str:
    """Return the model file for a quant, "" if there is none; without a quant, the usual ones.

    A quant matches, in any case, where a dot or dash follows it. Of a split model, the first part.
    """
    candidates = [name for name in files if _is_model(name)]
    for wanted in (quant,) if quant else DEFAULT_QUANTS:
        pattern = re.compile(re.escape(wanted) + "[.-]", re.IGNORECASE)
        for name in candidates:
            if pattern.search(name):
                return name
    return candidates[0] if candidates and not quant else ""


def choose_projector(files: Sequence[str], model: str) -> str:
    """Return the projector for a model file, "" if there is none.

    As llama-server does: one in the folder of the model or above it, the nearest; of several
    there, the one whose weights have most nearly as many bits as the model's.
    """
    folder = PurePosixPath(model).parent
    candidates = [
        PurePosixPath(name)
        for name in files
        if name.endswith(".gguf")
        and PROJECTOR in PurePosixPath(name).name
        and (folder == PurePosixPath(name).parent or PurePosixPath(name).parent in folder.parents)
    ]
    if not candidates:
        return ""
    num_bits = _bits_of(model)
    best = min(
        candidates,
        key=lambda each: (-len(each.parts), abs(_bits_of(each.name) - num_bits), each.name),
    )
    return str(best)


def parts_of(name: str, files: Sequence[str]) -> list[str]:
    """Return all parts of a split model, the given one first; of another one, itself."""
    match = PART_NAME.match(name)
    if not match:
        return [name]
    others = [
        other
        for other in files
        if other != name
        and (part := PART_NAME.match(other))
        and (part["stem"], part["count"]) == (match["stem"], match["count"])
    ]
    return [name, *sorted(others)]


def _fetch_model(listing: _Listing, repo: str, quant: str, source: ModelSource) -> tuple[Path, str]:
    """Return the path of the model's first part, and its name in the repository."""
    chosen = source.hf_file or choose_file(listing.files, quant)
    if not chosen or chosen not in listing.files:
        raise HubFailed(_explain_absence(repo, source.hf_file or quant, listing))
    logger.info("model %s of hub repository %s", chosen, repo)
    paths = [_fetch_file(repo, name, source, listing) for name in parts_of(chosen, listing.files)]
    return paths[0], chosen


def _bits_of(name: str) -> int:
    """Return how many bits the weights of a file have, by its name; 0 if that does not tell."""
    found = QUANT_BITS.findall(PurePosixPath(name).name)
    return int(found[-1]) if found else 0


def _is_model(path: str) -> bool:
    name = path.rsplit("/", 1)[-1]
    part = PART_NAME.match(name)
    return (
        name.endswith(".gguf")
        and not any(mark in name for mark in SIDE_FILES)
        and (part is None or int(part["index"]) == 1)
    )


def _list_files(repo: str, source: ModelSource) -> _Listing:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        RepositoryNotFoundError,
    )

    if source.offline:
        return _list_cached(repo, "--offline was given")
    try:
        info = HfApi(token=source.hf_token or None).model_info(repo)
    except HFValidationError as error:
        raise HubFailed(f"{repo} cannot be the name of a repository: {error}") from None
    except GatedRepoError:
        raise HubFailed(_explain_gate(repo)) from None
    except RepositoryNotFoundError:
        raise HubFailed(
            f"the hub has no repository {repo}, or it is private and needs a token "
            "(-hft or HF_TOKEN)"
        ) from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        if status in (401, 403):
            raise HubFailed(_explain_gate(repo)) from None
        return _list_cached(repo, f"the hub answered with status {status}")
    except _network_errors() as error:
        return _list_cached(repo, f"the hub cannot be reached ({type(error).__name__})")
    return _Listing(tuple(file.rfilename for file in info.siblings or ()), is_cached=False)


def _list_cached(repo: str, why: str) -> _Listing:
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}"
    reference = folder / "refs" / "main"
    tree = folder / "snapshots" / (reference.read_text().strip() if reference.is_file() else "-")
    files = sorted(path.relative_to(tree).as_posix() for path in tree.rglob("*.gguf"))
    if not files:
        raise HubFailed(f"{why}, and no model of {repo} is in the cache {folder.parent}")
    logger.warning("%s; taking %s from the cache", why, repo)
    return _Listing(tuple(files), is_cached=True)


def _fetch_file(repo: str, name: str, source: ModelSource, listing: _Listing) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError

    try:
        path = hf_hub_download(
            repo, name, token=source.hf_token or None, local_files_only=listing.is_cached
        )
    except GatedRepoError:
        raise HubFailed(_explain_gate(repo)) from None
    except LocalEntryNotFoundError:
        raise HubFailed(f"the hub cannot be reached, and {name} is not in the cache") from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        if status in (401, 403):
            raise HubFailed(_explain_gate(repo)) from None
        raise HubFailed(f"{name} cannot be fetched: the hub answered with {status}") from None
    except _network_errors() as error:
        raise HubFailed(
            f"{name} of {repo} cannot be fetched: {str(error).splitlines()[0]}"
        ) from None
    return Path(path)


def _network_errors() -> tuple[type[Exception], ...]:
    from huggingface_hub.errors import HfHubHTTPError

    # Release 1 of the hub library is built on httpx, release 2 on httpx2: both base their own
    # error on the client's, which is thus found without naming either.
    transport_error = HfHubHTTPError.__bases__[0]
    # Its other transport, hf_xet, is native code and raises RuntimeError.
    return (OSError, RuntimeError, transport_error)


def _explain_gate(repo: str) -> str:
    return (
        f"the hub refuses access to {repo}: accept its terms on its page, and give a token "
        "with -hft or HF_TOKEN"
    )


def _explain_absence(repo: str, wanted: str, listing: _Listing) -> str:
    models = [name for name in listing.files if _is_model(name)]
    where = f"the cache of {repo}" if listing.is_cached else f"the repository {repo}"
    if not models:
        return f"{where} holds no GGUF model"
    return f"{where} has no {wanted}; it has {', '.join(models)}"

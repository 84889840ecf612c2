"""The yardstick: llama.cpp's own server, from the very library that milepost uses.

    python -m milepost.bench.upstream SETTINGS PORT

serves until its standard input ends; SETTINGS is a `ServedModel` as JSON. `servers` starts it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from milepost.bench.servers import ServedModel


def main() -> None:
    """Serve as the arguments say."""
    served = msgspec.json.decode(sys.argv[1], type=ServedModel)
    import xllamacpp  # not at the top: only this process may pay for it

    server = xllamacpp.Server(make_params(xllamacpp, served, int(sys.argv[2])))
    sys.stdin.read()
    del server  # it serves as long as it is referred to


def make_params(library: Any, served: ServedModel, port: int) -> Any:
    """Return the settings as the wheel's server takes them."""
    params = library.CommonParams()
    params.model.path = served.model
    if served.mmproj is not None:
        params.mmproj.path = served.mmproj
    params.n_ctx = served.ctx_size
    params.n_parallel = served.parallel
    params.n_batch = served.batch_size
    params.n_ubatch = served.ubatch_size
    params.cpuparams.n_threads = served.threads
    params.cpuparams_batch.n_threads = served.threads
    if served.cache_ram_mib is not None:
        params.cache_ram_mib = served.cache_ram_mib
    if served.ctx_checkpoints is not None:
        params.n_ctx_checkpoints = served.ctx_checkpoints
    if served.checkpoint_min_step is not None:
        params.checkpoint_min_step = served.checkpoint_min_step
    if served.chat_template_file is not None:
        params.chat_template = Path(served.chat_template_file).read_text(encoding="utf-8")
    if served.slot_save_path is not None:
        params.slot_save_path = served.slot_save_path + "/"
    # What the program llama-server sets on its own, and the bare wheel does not: slots share the
    # context, and templates that can keep old reasoning do.
    params.kv_unified = True
    params.default_template_kwargs = {"preserve_reasoning": "true"}
    params.fit_params = False  # takes the settings as they are
    params.port = port
    return params


if __name__ == "__main__":
    main()

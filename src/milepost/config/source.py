"""Where the model file comes from; only the command line looks at it."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.config.flag import Flag, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """Where the model comes from; the command line resolves it to `EngineSettings.model_path`."""

    model: str = setting(
        "",
        Flag(
            names="-m --model",
            env="LLAMA_ARG_MODEL",
            metavar="FILE",
            group="Model",
            help="GGUF file to serve; of a split model, its first part.",
        ),
    )
    hf_repo: str = setting(
        "",
        Flag(
            names="-hf -hfr --hf-repo",
            env="LLAMA_ARG_HF_REPO",
            metavar="USER/REPO[:QUANT]",
            group="Model",
            help="Fetch the model from this hub repository; QUANT is Q4_K_M, else the first file, "
            "unless given.",
        ),
    )
    hf_file: str = setting(
        "",
        Flag(
            names="-hff --hf-file",
            env="LLAMA_ARG_HF_FILE",
            metavar="FILE",
            group="Model",
            help="File of the hub repository; overrides QUANT.",
        ),
    )
    hf_token: str = setting(
        "",
        Flag(
            names="-hft --hf-token",
            env="HF_TOKEN",
            metavar="TOKEN",
            group="Model",
            is_secret=True,
            help="Access token for the hub.",
        ),
    )
    offline: bool = setting(
        False,
        Flag(
            names="--offline",
            env="LLAMA_ARG_OFFLINE",
            group="Model",
            help="Take hub models from the local cache only, without any network access.",
        ),
    )

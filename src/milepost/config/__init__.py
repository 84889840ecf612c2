"""Every setting of the server, each defined once: default, flag, environment, bounds, help.

Names and meanings are llama-server's wherever it has the thing. The command line and
`docs/flags.md` are generated from these records. Imports nothing heavy: `--help` loads this.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from milepost.config.chat import ChatSettings
from milepost.config.engine import EngineSettings
from milepost.config.flag import Flag, setting
from milepost.config.media_input import MediaInputSettings
from milepost.config.server import LogSettings, ServerSettings
from milepost.config.source import ModelSource
from milepost.protocol.sampling import SamplingParams

__all__ = [
    "ChatSettings",
    "EngineSettings",
    "Flag",
    "LogSettings",
    "MediaInputSettings",
    "ModelSource",
    "SamplingParams",
    "ServerSettings",
    "Settings",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of one server; what `milepost.assemble.serve` is given."""

    engine: EngineSettings = field(default_factory=EngineSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    chat: ChatSettings = field(default_factory=ChatSettings)
    media: MediaInputSettings = field(default_factory=MediaInputSettings)
    log: LogSettings = field(default_factory=LogSettings)
    sampling: SamplingParams = field(default_factory=SamplingParams)  # defaults of requests
    model_name: str = ""  # the first alias, or made from the file or repository name
    n_predict: int = setting(
        -1,
        Flag(
            names="-n --predict --n-predict",
            env="LLAMA_ARG_N_PREDICT",
            group="Sampling",
            unit="tokens",
            minimum=-1,
            shown_default="-1: until the context is full",
            help="Most tokens of an answer, where a request does not say.",
        ),
    )
    special: bool = setting(
        False,
        Flag(
            names="-sp --special",
            group="Sampling",
            help="Show control tokens in the text of answers.",
        ),
    )

"""Flags of the sampling defaults; the defaults themselves are those of `SamplingParams`.

Two flags may fill one field (`--grammar` and `--grammar-file`); where both are given, the later
one in this table counts.
"""

from __future__ import annotations

from functools import partial

from milepost.config.flag import Flag
from milepost.protocol.sampling import SAMPLER_LETTERS

_flag = partial(Flag, group="Sampling")

# (field of SamplingParams, its flag)
SAMPLING_FLAGS: tuple[tuple[str, Flag], ...] = (
    (
        "samplers",
        _flag(
            names="--samplers",
            kind="samplers",
            metavar="NAME;NAME;...",
            help="Samplers in the order in which they are applied.",
        ),
    ),
    (
        "samplers",
        _flag(
            names="--sampler-seq --sampling-seq",
            kind="sampler_letters",
            metavar="LETTERS",
            shown_default="edskypmxt",
            help="The same in short, one letter for each: "
            + ", ".join(f"{letter} {name}" for letter, name in SAMPLER_LETTERS.items())
            + ".",
        ),
    ),
    (
        "seed",
        _flag(
            names="-s --seed",
            kind="seed",
            minimum=0,
            maximum=2**32 - 1,
            shown_default="-1: drawn for each request",
            help="Seed of the random choice.",
        ),
    ),
    (
        "ignore_eos",
        _flag(names="--ignore-eos", help="Go on after the end-of-text token."),
    ),
    (
        "temperature",
        _flag(
            names="--temp --temperature",
            env="LLAMA_ARG_TEMPERATURE",
            help="Temperature; 0 always takes the most likely token.",
        ),
    ),
    (
        "top_k",
        _flag(
            names="--top-k",
            env="LLAMA_ARG_TOP_K",
            help="Keep the K most likely tokens; 0 keeps all.",
        ),
    ),
    (
        "top_p",
        _flag(
            names="--top-p",
            env="LLAMA_ARG_TOP_P",
            minimum=0,
            maximum=1,
            help="Keep the most likely tokens that add up to P; 1 keeps all.",
        ),
    ),
    (
        "min_p",
        _flag(
            names="--min-p",
            env="LLAMA_ARG_MIN_P",
            minimum=0,
            maximum=1,
            help="Drop tokens less likely than P times the best one; 0 keeps all.",
        ),
    ),
    (
        "top_n_sigma",
        _flag(
            names="--top-nsigma --top-n-sigma",
            help="Keep tokens within N standard deviations of the best logit; -1 keeps all.",
        ),
    ),
    (
        "xtc_probability",
        _flag(
            names="--xtc-probability",
            minimum=0,
            maximum=1,
            help="Chance to drop the top choices (XTC); 0 never does.",
        ),
    ),
    (
        "xtc_threshold",
        _flag(
            names="--xtc-threshold",
            minimum=0,
            maximum=1,
            help="Probability from which a token counts as a top choice; above 0.5 XTC is off.",
        ),
    ),
    (
        "typical_p",
        _flag(
            names="--typical --typical-p",
            minimum=0,
            maximum=1,
            help="Locally typical sampling; 1 is off.",
        ),
    ),
    (
        "repeat_last_n",
        _flag(
            names="--repeat-last-n",
            unit="tokens",
            minimum=-1,
            help="How far back the penalties look; 0 is off, -1 the whole context.",
        ),
    ),
    (
        "repeat_penalty",
        _flag(
            names="--repeat-penalty",
            env="LLAMA_ARG_REPEAT_PENALTY",
            above=0,
            help="Penalty of repeated tokens; 1 is off.",
        ),
    ),
    (
        "presence_penalty",
        _flag(
            names="--presence-penalty",
            env="LLAMA_ARG_PRESENCE_PENALTY",
            help="Penalty of tokens that have occurred; 0 is off.",
        ),
    ),
    (
        "frequency_penalty",
        _flag(
            names="--frequency-penalty",
            env="LLAMA_ARG_FREQUENCY_PENALTY",
            help="Penalty of tokens for each time that they have occurred; 0 is off.",
        ),
    ),
    (
        "dry_multiplier",
        _flag(
            names="--dry-multiplier",
            minimum=0,
            help="Strength of the penalty of repeated sequences (DRY); 0 is off.",
        ),
    ),
    (
        "dry_base",
        _flag(names="--dry-base", minimum=1, help="Base of the DRY penalty's growth."),
    ),
    (
        "dry_allowed_length",
        _flag(
            names="--dry-allowed-length",
            unit="tokens",
            minimum=0,
            help="Longest repetition that DRY leaves alone.",
        ),
    ),
    (
        "dry_penalty_last_n",
        _flag(
            names="--dry-penalty-last-n",
            unit="tokens",
            minimum=-1,
            help="How far back DRY looks; 0 is off, -1 the whole context.",
        ),
    ),
    (
        "dry_sequence_breakers",
        _flag(
            names="--dry-sequence-breaker",
            kind="breakers",
            metavar="TEXT",
            shown_default=r'\n : " *',
            help='Text that ends a DRY sequence, instead of the defaults; "none" for no such '
            "text; may be given several times.",
        ),
    ),
    (
        "adaptive_target",
        _flag(
            names="--adaptive-target",
            maximum=1,
            help="Probability near which adaptive-p selects tokens; below 0 it is off.",
        ),
    ),
    (
        "adaptive_decay",
        _flag(
            names="--adaptive-decay",
            minimum=0,
            maximum=0.99,
            help="How slowly adaptive-p adapts.",
        ),
    ),
    (
        "dynatemp_range",
        _flag(
            names="--dynatemp-range",
            minimum=0,
            help="Range of the dynamic temperature around --temp; 0 is off.",
        ),
    ),
    (
        "dynatemp_exponent",
        _flag(names="--dynatemp-exp", help="Exponent of the dynamic temperature."),
    ),
    (
        "mirostat",
        _flag(
            names="--mirostat",
            minimum=0,
            maximum=2,
            help="Mirostat version; 0 is off. It replaces top-k, top-p and typical.",
        ),
    ),
    (
        "mirostat_eta",
        _flag(names="--mirostat-lr", minimum=0, help="Mirostat's learning rate, eta."),
    ),
    (
        "mirostat_tau",
        _flag(names="--mirostat-ent", minimum=0, help="Mirostat's target entropy, tau."),
    ),
    (
        "logit_bias",
        _flag(
            names="-l --logit-bias",
            kind="logit_bias",
            metavar="TOKEN±BIAS",
            help="Make a token more or less likely, for example 15043+1; may be given several "
            "times.",
        ),
    ),
    (
        "grammar",
        _flag(
            names="--grammar",
            metavar="GBNF",
            help="Grammar that answers must follow.",
        ),
    ),
    (
        "grammar",
        _flag(
            names="--grammar-file",
            kind="text_file",
            metavar="FILE",
            help="File with such a grammar.",
        ),
    ),
)

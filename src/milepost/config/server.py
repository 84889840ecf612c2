"""Settings of the front end: HTTP and logging."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.config.flag import Flag, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How the server is reached, and what it exposes."""

    host: str = setting(
        "127.0.0.1",
        Flag(
            names="--host",
            env="LLAMA_ARG_HOST",
            group="Server",
            kind="host",
            metavar="ADDRESS",
            help="Address to listen on.",
        ),
    )
    port: int = setting(
        8080,
        Flag(
            names="--port",
            env="LLAMA_ARG_PORT",
            group="Server",
            minimum=0,
            maximum=65535,
            help="Port to listen on; 0 takes a free one.",
        ),
    )
    alias: tuple[str, ...] = setting(
        (),
        Flag(
            names="-a --alias",
            env="LLAMA_ARG_ALIAS",
            group="Server",
            kind="csv",
            metavar="NAME,...",
            shown_default="from the file name",
            help="Names under which the model is served.",
        ),
    )
    api_keys: tuple[str, ...] = setting(
        (),
        Flag(
            names="--api-key",
            env="LLAMA_API_KEY",
            group="Server",
            kind="csv",
            metavar="KEY,...",
            is_secret=True,
            help="Keys that clients must send; may be given several times.",
        ),
    )
    api_key_file: str = setting(
        "",
        Flag(
            names="--api-key-file",
            env="LLAMA_ARG_API_KEY_FILE",
            group="Server",
            metavar="FILE",
            help="File with more keys, one a line; lines that start with # are comments.",
        ),
    )
    timeout_s: int = setting(
        3600,
        Flag(
            names="-to --timeout",
            env="LLAMA_ARG_TIMEOUT",
            group="Server",
            unit="s",
            minimum=1,
            help="Longest wait for a client to read or write.",
        ),
    )
    sse_ping_interval_s: int = setting(
        15,
        Flag(
            names="--sse-ping-interval",
            env="LLAMA_ARG_SSE_PING_INTERVAL",
            group="Server",
            unit="s",
            minimum=-1,
            help="Time between comments that keep a silent stream open; -1 sends none.",
        ),
    )
    max_body_bytes: int = setting(
        64 << 20,  # arbitrary; a transcript of a million tokens has about 5 MB
        Flag(
            names="--max-body-mib",
            env="MILEPOST_MAX_BODY_MIB",
            group="Server",
            kind="mebibytes",
            unit="MiB",
            minimum=1,
            maximum=4096,
            shown_default="64",
            help="Largest request body.",
        ),
    )
    max_waiting: int = setting(
        128,  # arbitrary; a prompt of 100,000 tokens takes some megabytes while it waits
        Flag(
            names="--max-waiting",
            env="MILEPOST_MAX_WAITING",
            group="Server",
            unit="requests",
            minimum=-1,
            help="Most requests that wait for a slot; more get a 503 with Retry-After. "
            "-1: no limit.",
        ),
    )
    metrics: bool = setting(
        False,
        Flag(
            names="--metrics",
            env="LLAMA_ARG_ENDPOINT_METRICS",
            group="Server",
            help="Serve Prometheus metrics at /metrics.",
        ),
    )
    slots: bool = setting(
        True,
        Flag(
            names="--slots",
            negated="--no-slots",
            env="LLAMA_ARG_ENDPOINT_SLOTS",
            group="Server",
            help="Serve the state of the slots at /slots.",
        ),
    )
    slot_save_path: str = setting(
        "",
        Flag(
            names="--slot-save-path",
            env="LLAMA_ARG_SLOT_SAVE_PATH",
            metavar="FOLDER",
            group="Server",
            help="Where POST /slots/{id}?action=save writes slots. Not needed for restarts.",
        ),
    )
    record: str = setting(
        "",
        Flag(
            names="--record",
            env="MILEPOST_RECORD",
            metavar="FILE",
            group="Server",
            help="Write all chats, with their texts, into this trace, for `milepost bench`.",
        ),
    )
    webui: bool = setting(
        True,
        Flag(
            names="--ui --webui",
            negated="--no-ui --no-webui",
            env="LLAMA_ARG_UI",
            group="Server",
            help="Serve a web interface (accepted; there is none yet).",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """What is logged, and where to."""

    verbosity: int = setting(
        3,
        Flag(
            names="-lv --verbosity --log-verbosity",
            env="LLAMA_ARG_LOG_VERBOSITY",
            group="Logging",
            minimum=0,
            help="0: nearly nothing, 1: errors, 2: warnings, 3: one line per request, "
            "4 and more: everything.",
        ),
    )
    verbose: bool = setting(
        False,
        Flag(
            names="-v --verbose --log-verbose",
            group="Logging",
            help="Log everything, prompts and answers too.",
        ),
    )
    file: str = setting(
        "",
        Flag(
            names="--log-file",
            env="LLAMA_ARG_LOG_FILE",
            metavar="FILE",
            group="Logging",
            help="Append the log to this file too.",
        ),
    )
    jsonl: bool = setting(
        False,
        Flag(
            names="--log-jsonl",
            negated="--no-log-jsonl",
            env="LLAMA_ARG_LOG_JSONL",
            group="Logging",
            help="Log one JSON object a line.",
        ),
    )

"""A stand-in for the engine process: speaks the protocol, and fails in the way it is told.

Started as `python engine_process.py WAY FD`.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fakes.engine import MODEL

from milepost.protocol.failure import Failure
from milepost.protocol.framing import encode_frame
from milepost.protocol.messages import (
    PROTOCOL_VERSION,
    Hello,
    LoadFailed,
    LoadProgress,
    Ready,
)


def main(way: str, sock: socket.socket) -> None:
    """Go one way to the end; each sends what a real process would have sent before."""
    if way == "exit at once":
        sys.exit(3)
    if way == "garbage":
        sock.sendall(b"\x03\x00\x00\x00abc")
        time.sleep(60)
    version = PROTOCOL_VERSION + (way == "other version")
    sock.sendall(encode_frame(Hello(protocol_version=version, pid=os.getpid(), library="fake")))
    sock.recv(1 << 16)  # the Load
    if way == "load fails":
        sock.sendall(
            encode_frame(LoadFailed(failure=Failure(kind="ModelFileError", message="no such file")))
        )
        time.sleep(60)
    sock.sendall(encode_frame(LoadProgress(fraction=0.5)))
    sock.sendall(encode_frame(Ready(model=MODEL)))
    if way == "dies after ready":
        os.kill(os.getpid(), signal.SIGKILL)
    while sock.recv(1 << 16) and way != "serves":
        pass  # "serves" ends with the first message, which is Shutdown


if __name__ == "__main__":
    main(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))

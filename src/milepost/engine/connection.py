"""The engine's end of the socket: a reader thread in, one write per step out.

The loop is busy inside `llama_decode` for seconds during a prefill, so a thread of its own reads.
It spends its life in `recv`, which does not need the GIL. It does one thing besides queueing: a
`Cancel` for the request that is being computed sets the context's abort flag at once.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
from typing import cast

from milepost.errors import ProtocolError
from milepost.libllama.context import AbortFlag
from milepost.protocol.framing import FrameReader, encode_frame
from milepost.protocol.messages import Cancel, Message, ToEngine

RECEIVE_BYTES = 1 << 18  # arbitrary
NO_REQUEST = -1
WAKE = object()  # in the inbox: something happened that is no message

logger = logging.getLogger(__name__)


class ConnectionClosed(Exception):
    """The front end is gone."""


class Connection:
    """Messages from and to the front end; everything but the reader runs on the loop's thread."""

    def __init__(self, sock: socket.socket, reader: FrameReader[ToEngine]) -> None:
        self._sock = sock
        self._reader = reader
        self._inbox: queue.SimpleQueue[ToEngine | object | None] = queue.SimpleQueue()
        self._outbox: list[bytes] = []
        # The one lock of the engine, held for a comparison: without it a late Cancel could set
        # the flag after its batch had ended, and abort the next one, of another request.
        self._abort_lock = threading.Lock()
        self._abort_flag: AbortFlag | None = None
        self._abortable_request_id = NO_REQUEST
        self._unread_cancels: set[int] = set()  # read from the socket, not yet by the loop
        self._is_closed = False
        self._thread = threading.Thread(target=self._read, name="socket-reader", daemon=True)
        self._thread.start()

    def use_abort_flag(self, flag: AbortFlag) -> None:
        """Name the flag that stops the running batch."""
        self._abort_flag = flag

    def allow_abort(self, request_id: int) -> None:
        """Say that the batch to come belongs to this request alone.

        A cancel that came since `receive` aborts it at its first step.
        """
        with self._abort_lock:
            self._abortable_request_id = request_id
            if self._abort_flag is not None and (
                self._is_closed or request_id in self._unread_cancels
            ):
                self._abort_flag.set()

    def forbid_abort(self) -> None:
        """Say that the batch has ended."""
        with self._abort_lock:
            self._abortable_request_id = NO_REQUEST
            if self._abort_flag is not None:
                self._abort_flag.clear()

    def receive(self, *, wait: bool, timeout_s: float | None = None) -> list[ToEngine]:
        """Return what has arrived, after the first message, `wake` or so many seconds if `wait`.

        Raises ConnectionClosed when the front end is gone.
        """
        messages: list[ToEngine] = []
        try:
            while True:
                message = self._inbox.get(block=wait, timeout=timeout_s)
                if message is None:
                    raise ConnectionClosed
                if isinstance(message, Cancel):
                    with self._abort_lock:
                        self._unread_cancels.discard(message.request_id)
                if message is not WAKE:
                    messages.append(cast(ToEngine, message))
                wait = False
        except queue.Empty:
            return messages

    def wake(self) -> None:
        """End a `receive` that waits, or the next one; any thread may call it."""
        self._inbox.put(WAKE)

    def send(self, message: Message) -> None:
        """Queue a message until `flush`."""
        self._outbox.append(encode_frame(message))

    def flush(self) -> None:
        """Write all queued messages; blocks while the front end does not read."""
        if not self._outbox:
            return
        data = b"".join(self._outbox)
        self._outbox.clear()
        try:
            self._sock.sendall(data)
        except OSError as error:
            raise ConnectionClosed from error

    def close(self) -> None:
        """Close the socket; the reader thread ends."""
        with contextlib.suppress(OSError):  # the other end may be faster
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _read(self) -> None:
        try:
            while data := self._sock.recv(RECEIVE_BYTES):
                for message in self._reader.feed(data):
                    if isinstance(message, Cancel):
                        self._abort(message.request_id)
                    self._inbox.put(message)
        except ProtocolError as error:
            logger.error("%s; the engine process ends", error)
        except OSError:
            pass  # the front end is gone
        finally:
            self._abort_for_good()
            self._inbox.put(None)

    def _abort(self, request_id: int) -> None:
        """Abort the running batch if it is this request's alone, and otherwise its next one."""
        with self._abort_lock:
            self._unread_cancels.add(request_id)
            if self._abort_flag is not None and request_id == self._abortable_request_id:
                self._abort_flag.set()

    def _abort_for_good(self) -> None:
        """Abort the running batch, if it belongs to one request, and each such one to come."""
        with self._abort_lock:
            self._is_closed = True
            if self._abort_flag is not None and self._abortable_request_id != NO_REQUEST:
                self._abort_flag.set()

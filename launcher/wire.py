"""Messages between the launcher and its fork server: one packet, one JSON object, and file descriptors beside it.

A ``SOCK_SEQPACKET`` pair keeps message boundaries, so that a message and its descriptors cannot come apart, and
several processes may send on the same end without mixing their messages.
"""

import array
import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from torchtpu_dist.errors import LaunchError

MAX_MESSAGE_BYTES = 1 << 20
_MAX_DESCRIPTORS = 8


class Channel:
    """One end of a two-way connection. Owns its socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    @classmethod
    def pair(cls) -> tuple["Channel", "Channel"]:
        """Two connected ends."""
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ends[0]), cls(ends[1])

    @classmethod
    def from_descriptor(cls, descriptor: int) -> "Channel":
        """The end that a parent process passed on as ``descriptor``."""
        os.set_inheritable(descriptor, False)
        return cls(socket.socket(fileno=descriptor))

    def fileno(self) -> int:
        """The descriptor, for selectors."""
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send one message. The other process gets its own copies of ``descriptors``.

        Raises:
            LaunchError: the message is too large for one packet, or the other end is gone.
        """
        packet = json.dumps(message).encode()
        # The kernel charges a packet with some bookkeeping on top of its bytes, and may cap what it grants.
        if len(packet) > 64 * 1024:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * len(packet))
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            if len(packet) > MAX_MESSAGE_BYTES:
                raise OSError(f"more than {MAX_MESSAGE_BYTES} bytes")
            self._socket.sendmsg([packet], rights)
        except OSError as error:
            raise LaunchError(
                f"a message of {len(packet)} bytes could not be sent to the process at the other end: {error}"
            ) from error

    def receive(self) -> tuple[dict[str, Any], list[int]] | None:
        """Wait for one message and its descriptors; None when the other end is gone for good."""
        try:
            packet, ancillary, _, _ = self._socket.recvmsg(
                MAX_MESSAGE_BYTES, socket.CMSG_LEN(_MAX_DESCRIPTORS * array.array("i").itemsize)
            )
        except ConnectionResetError:
            return None
        if not packet:
            return None
        descriptors = array.array("i")
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        return json.loads(packet), list(descriptors)

    def close(self) -> None:
        """Close this end in this process."""
        self._socket.close()

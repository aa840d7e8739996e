"""The one stream of progress lines: rank 0 speaks for all."""

import os

CONSOLE_FD = "TORCHTPU_CONSOLE_FD"


class Console:
    """Writes lines to the launcher's console on rank 0, and nothing on other ranks.

    The launcher hands rank 0 a file descriptor in the environment, because every rank's own stdout goes to its log.
    Without a launcher the lines go to stdout.
    """

    def __init__(self, rank: int) -> None:
        self._descriptor = int(os.environ.get(CONSOLE_FD, "1")) if rank == 0 else None

    def line(self, text: str = "") -> None:
        """Write ``text`` and a newline at once, so that it is never cut by another writer."""
        if self._descriptor is None:
            return
        data = (text + "\n").encode()
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except BrokenPipeError:
            # Nobody reads any more: the launcher has died, and the ranks have yet to save. Metrics are in files.
            self._descriptor = None

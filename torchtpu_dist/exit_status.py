"""How a process ended, in words: one way of saying it for the ranks and for their supervisor."""

import signal


def describe_exit(exit_status: int) -> str:
    """``exited with code 9``, or for a negative status (minus the signal) ``was killed by signal 9 (SIGKILL)``."""
    if exit_status >= 0:
        return f"exited with code {exit_status}"
    try:
        name = signal.Signals(-exit_status).name
    except ValueError:
        return f"was killed by signal {-exit_status}"
    return f"was killed by signal {-exit_status} ({name})"

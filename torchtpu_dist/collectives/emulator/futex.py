"""Blocking waits on a word of shared memory, through the ``futex`` system call of Linux.

The call goes through ctypes, which releases the interpreter lock while it blocks. Nothing here spins: with more
ranks than cores a spinning rank takes the core from the rank it waits for.
"""

import ctypes
import errno
import platform
import sys

from torchtpu_dist.errors import CollectiveError

_WAIT = 0  # FUTEX_WAIT and FUTEX_WAKE without FUTEX_PRIVATE_FLAG: the word is shared between processes
_WAKE = 1
_ALL = 0x7FFFFFFF
_SYSCALL_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def _syscall_number() -> int:
    number = _SYSCALL_NUMBERS.get(platform.machine())
    if sys.platform != "linux" or number is None:
        raise CollectiveError(
            f"the ici backend waits with the futex system call of Linux; got {sys.platform} on "
            f"{platform.machine()}, expected Linux on one of {', '.join(_SYSCALL_NUMBERS)}. "
            "Use the gloo backend on this machine."
        )
    return number


_NUMBER = _syscall_number()
_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = (
    ctypes.c_long,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_uint32,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_uint32,
)


class Timeout:
    """A relative timeout in the form the kernel reads; made once, used for every wait."""

    def __init__(self, seconds: float) -> None:
        whole = int(seconds)
        self._value = _Timespec(whole, int((seconds - whole) * 1e9))
        self.address = ctypes.addressof(self._value)


def wait(address: int, expected: int, timeout: Timeout) -> bool:
    """Block while the 32-bit word at ``address`` equals ``expected`` (0 to 2**32 - 1).

    Returns False when the timeout ran out, True otherwise: woken, changed before the wait began, or
    interrupted by a signal. The caller looks at its condition again in every case.
    """
    if _syscall(_NUMBER, address, _WAIT, expected, timeout.address, None, 0) == 0:
        return True
    code = ctypes.get_errno()
    if code == errno.ETIMEDOUT:
        return False
    if code in (errno.EAGAIN, errno.EINTR):
        return True
    raise CollectiveError(f"futex wait failed: {errno.errorcode.get(code, code)}")


def wake_all(address: int) -> None:
    """Wake everybody who waits on the word at ``address``. The word was changed before."""
    _syscall(_NUMBER, address, _WAKE, _ALL, None, None, 0)

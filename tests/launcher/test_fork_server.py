import os
import select
import subprocess
import sys

PARENT = """
import os, signal, sys
from launcher.fork_server import die_with_parent
parent, (read, write) = os.getpid(), os.pipe()
child = os.fork()
if child == 0:
    die_with_parent(parent)
    os.write(write, b"x")
    signal.pause()
os.read(read, 1)
sys.stdout.write(f"{child}\\n")
sys.stdout.flush()
signal.pause()
"""


def test_a_rank_does_not_outlive_its_parent():
    """Without the server's or the launcher's help: both may be killed at the same moment."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    try:
        assert parent.stdout is not None
        watched = os.pidfd_open(int(parent.stdout.readline()))
    finally:
        parent.kill()
        parent.communicate()
    assert select.select([watched], [], [], 20.0)[0]
    os.close(watched)

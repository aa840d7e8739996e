import os
import subprocess
import sys

SCRIPT = """
import os
import sys
import torchtpu_dist.training.preload
from torchtpu_dist.data import corpus
threads = os.listdir("/proc/self/task")
print(len(threads), corpus._splits.cache_info().currsize, "torchtpu_dist.models.llama3" in sys.modules)
"""


def test_what_ranks_share_is_there_before_they_are_forked_and_starts_no_thread():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.split() == ["1", "1", "True"]

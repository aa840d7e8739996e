"""``python drive.py ENTRY WORLD_SIZE RUN_DIR [exec]``: a launcher for entries.py."""

import sys
from pathlib import Path

from rich.console import Console

from launcher.job import Job
from launcher.local import run_local
from launcher.run_directory import RunDirectory
from torchtpu_dist.errors import TorchTpuError

entry, world_size, run_dir, *start = sys.argv[1:]
try:
    with RunDirectory.open(Path(run_dir), keep=False) as directory:
        job = Job(
            f"entries:{entry}",
            {},
            int(world_size),
            directory.path,
            backend="gloo",
            preload=(),
            grace_s=30,
            exec_ranks=start == ["exec"],
        )
        sys.exit(run_local(job, Console(stderr=True), directory.record, console_fd=1).exit_code)
except TorchTpuError as error:
    sys.stderr.write(f"error: {error}\n")
    sys.exit(error.exit_code)

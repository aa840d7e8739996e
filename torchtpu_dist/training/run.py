"""One rank's view of the run: what is fixed before the first step and never changes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from torchtpu_dist.checkpoint.manifest import Manifest
from torchtpu_dist.data.tokenizer import ByteTokenizer
from torchtpu_dist.mesh.device_mesh import build_device_mesh
from torchtpu_dist.mesh.slices import Slice
from torchtpu_dist.models.registry import checkpoint_shape, model_args
from torchtpu_dist.models.shapes import Llama3Args, train_flops_per_token
from torchtpu_dist.parallel.checks import BatchPlan, plan_batch
from torchtpu_dist.parallel.degrees import ParallelDegrees
from torchtpu_dist.parallel.groups import data_parallel_group, data_parallel_rank
from torchtpu_dist.training.config import TrainerConfig
from torchtpu_dist.training.console import Console


@dataclass(frozen=True)
class Run:
    """Recipe, mesh and this rank's place in it."""

    config: TrainerConfig
    run_dir: Path
    rank: int
    degrees: ParallelDegrees
    mesh: DeviceMesh
    data_group: dist.ProcessGroup | None  # the ranks that see other samples; None: this rank sees them all
    data_rank: int
    batch: BatchPlan
    args: Llama3Args
    peak_flops_per_s: float  # bf16, of one device of the real slice
    tokenizer: ByteTokenizer
    console: Console

    @classmethod
    def build(cls, config: TrainerConfig, run_dir: Path, mesh_ranks: Sequence[int] | None = None) -> "Run":
        """Lay the recipe's mesh over the ranks of the (initialised) process group. Called by all ranks alike.

        ``mesh_ranks`` is the rank at each place of the mesh, row-major; None: in ascending order.
        """
        slice_ = Slice.parse(config.slice)
        degrees = ParallelDegrees.resolve(config.parallelism, slice_.num_devices, slice_.name)
        mesh = build_device_mesh(slice_, degrees.axes, ranks=mesh_ranks)
        return cls(
            config=config,
            run_dir=run_dir,
            rank=dist.get_rank(),
            degrees=degrees,
            mesh=mesh,
            data_group=data_parallel_group(mesh),
            data_rank=data_parallel_rank(mesh),
            batch=plan_batch(degrees, config.training),
            args=model_args(config.model),
            peak_flops_per_s=slice_.generation.bf16_tflops * 1e12 / slice_.generation.devices_per_chip,
            tokenizer=ByteTokenizer(),
            console=Console(dist.get_rank()),
        )

    @property
    def tokens_per_step(self) -> int:
        """Tokens put through in one optimizer step, over all ranks."""
        return self.batch.global_batch_size * self.config.training.seq_len

    @property
    def flops_per_step(self) -> float:
        """Model FLOPs of one optimizer step on one device: forward and backward, nothing recomputed."""
        per_token = train_flops_per_token(self.args, self.config.training.seq_len)
        return per_token * self.tokens_per_step / self.degrees.num_devices

    def manifest(self, step: int, tokens: int, data: dict[str, Any]) -> Manifest:
        """What a checkpoint of this run says about itself after ``step`` steps."""
        return Manifest(
            step=step,
            tokens=tokens,
            seed=self.config.seed,
            data=data,
            model=self.model_shape(),
            degrees=dict(self.degrees.axes),
            config=self.config.model_dump(mode="json"),
            torch_version=torch.__version__,
        )

    def model_shape(self) -> dict[str, Any]:
        """The shape of the model as a checkpoint states it."""
        return checkpoint_shape(self.config.model, self.args)

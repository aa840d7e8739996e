"""AdamW over the parameters of a wrapped model."""

import torch

from torchtpu_dist.training.config import OptimizerConfig


def build_optimizer(model: torch.nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only: gains of norms and other vectors are not pulled to zero.

    The fused form is one kernel a group instead of a dozen dispatches a parameter, which on sharded (DTensor)
    parameters is most of the optimizer's time.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in parameters if p.dim() >= 2]
    vectors = [p for p in parameters if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Use ``lr`` for the next step of every group."""
    for group in optimizer.param_groups:
        group["lr"] = lr

"""Text from the trained model, for a person to look at."""

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from torchtpu_dist.models.generate import generate
from torchtpu_dist.models.registry import build_model
from torchtpu_dist.training.run import Run


def print_sample(run: Run, model: torch.nn.Module) -> None:
    """Print what the model writes after ``sample.prompt``. Called by all ranks alike.

    Rank 0 gathers the weights and writes alone, on the plain model: a token on the sharded model would cost every rank
    a forward with all its collectives, for one row of text. So rank 0 holds one full copy of the weights meanwhile.
    """
    sample = run.config.sample
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if run.rank != 0:
        return
    with torch.device("meta"):
        plain = build_model(run.args)
    plain.load_state_dict(weights, assign=True)
    text = generate(
        plain,
        run.tokenizer,
        sample.prompt,
        sample.tokens,
        sample.temperature,
        run.config.seed,
        run.config.training.seq_len,
        fixed_shape=False,
    )
    run.console.line(f"sample (at most {sample.tokens} bytes, temperature {sample.temperature}):")
    for line in text.split("\n"):
        run.console.line(f"  | {printable(line)}")


def printable(text: str) -> str:
    """``text`` with control characters written out (``\\x1b``): an untrained model must not steer the terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)

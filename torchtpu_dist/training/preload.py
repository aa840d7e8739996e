"""What all ranks of a host need alike: imported by the process that forks them, it is there once for all of them.

Reading the corpus is a quarter of the time in which a rank with a tiny model comes to its first step. Nothing here may
start a thread.
"""

import contextlib

import torchtpu_dist.models.llama3
import torchtpu_dist.training.main  # noqa: F401
from torchtpu_dist.data.corpus import python_stdlib_corpus
from torchtpu_dist.errors import RecipeError

with contextlib.suppress(RecipeError):  # for the ranks to say, if they read it at all
    python_stdlib_corpus("train")

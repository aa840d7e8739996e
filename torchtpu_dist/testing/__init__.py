"""Test helpers, public: run a function in several ranks as a real job would run it."""

from torchtpu_dist.testing.spawn import RanksFailed, close_server, run_ranks

__all__ = ["RanksFailed", "close_server", "run_ranks"]

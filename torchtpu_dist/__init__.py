"""Training for TPU pods in PyTorch that is written, tested, planned and run without owning a pod."""

__version__ = "0.1.0"

"""Collectives of CUDA tensors: NCCL, or pinned host memory."""

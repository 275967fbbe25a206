"""Compute kernels for exactly the layer shapes of the IMPALA-CNN, in C, compiled at set-up; torch is the fallback and the reference."""

from parallel_ppo.kernels.native import NativeImpala, available, supports

__all__ = ["NativeImpala", "available", "supports"]

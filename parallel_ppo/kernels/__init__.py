"""Compute kernels for exactly the layer shapes of the IMPALA-CNN, in C, compiled at set-up; torch is the fallback and the reference."""

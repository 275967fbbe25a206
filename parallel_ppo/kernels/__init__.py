"""Compute kernels for exactly the layer shapes of the IMPALA and Nature CNNs on 64x64 images, in C,
compiled at set-up; torch is the fallback and the reference.
"""

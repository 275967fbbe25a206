"""Compute kernels in C, compiled at set-up: for exactly the layer shapes of the IMPALA CNN and Impoola on
64x64 images and of the Nature CNN on 64x64 and 84x84 images, and for MLPs. Torch is the fallback and the
reference.
"""

"""Kernels: gradients written by hand, for networks where that is much faster than autograd. Tests compare both."""

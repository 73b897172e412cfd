"""Kernels: gradients by hand where that is much faster than autograd. Tests hold them to it."""

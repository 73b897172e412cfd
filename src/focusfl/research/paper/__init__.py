"""Reproduce the paper's tables and figures: what they are, how they are computed, and whether its claims hold."""

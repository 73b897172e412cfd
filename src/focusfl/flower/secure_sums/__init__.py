"""Sums that hide their terms (docs/secure-sums.md)."""

"""Damaged and strange input of every kind, made from a seed and a number: nothing of it may break the program.

`harness.py` runs a command and judges what it did, `damage.py` makes bad bytes and values, `kinds.py` has one
function per kind of input. `python -m tests.fuzz` runs as many cases as you like (CONTRIBUTING.md).
"""

"""The command line: one file per group of commands; app.py joins them."""

from focusfl.cli.app import main

__all__ = ["main"]

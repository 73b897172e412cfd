"""The command line: one file per group of commands."""

from focusfl.cli.app import main

__all__ = ["main"]

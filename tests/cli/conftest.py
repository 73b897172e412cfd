"""The command line, called in this process."""

import sys

import pytest

from focusfl.cli import app as cli


@pytest.fixture
def focusfl(monkeypatch, capsys, tmp_path):
    """Run in this process, in an empty folder; gives (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["focusfl", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        printed = capsys.readouterr()
        return stopped.value.code, printed.out, printed.err

    return call

"""Ctrl-C on the command line: exit code 130 and no traceback, however often it is pressed and whenever."""

import signal
import subprocess
import sys
import threading

import pytest

SCRIPT = """
import sys, threading, time
from focusfl.cli import app
from focusfl.util.interrupt import graceful_stop

def wait(place):
    print(place, flush=True)
    while True:
        time.sleep(0.01)

@app.app.command()
def hold(where: str):
    threading.Thread(target=sys.stdin.read).start()  # the interpreter waits for it before it closes
    if where == "before":
        wait("ready")
    if where == "done":
        return
    with graceful_stop():
        try:
            wait("ready")
        finally:
            if where == "unwinding":
                wait("unwinding")

app.main()
"""


@pytest.fixture
def hold():
    """Start the script; give a function that waits for a word of its output and then presses Ctrl-C."""
    started, watchdogs = [], []

    def start(where):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen([sys.executable, "-c", SCRIPT, "hold", where], **pipes)
        started.append(process)
        watchdogs.append(threading.Timer(60, process.kill))
        watchdogs[-1].start()

        def press(stream, word):
            for line in getattr(process, stream):
                assert "Traceback" not in line
                if word in line:
                    break
            process.send_signal(signal.SIGINT)

        return process, press

    yield start
    for process, watchdog in zip(started, watchdogs, strict=True):
        watchdog.cancel()
        process.kill()
        process.communicate()


PRESSES = {  # where it is, when each Ctrl-C comes
    "before": [("stdout", "ready"), ("stderr", "interrupted")],
    "training": [("stdout", "ready"), ("stderr", "stopping"), ("stderr", "interrupted")],
    "unwinding": [("stdout", "ready"), ("stderr", "stopping"), ("stdout", "unwinding")],
}


@pytest.mark.parametrize("where", PRESSES)
def test_one_ctrl_c_more_ends_it_without_a_traceback(where, hold):
    process, press = hold(where)
    for moment in PRESSES[where]:
        press(*moment)
    said = process.stderr.read()  # to the end: it has ended, although its input is still open
    assert process.wait(timeout=30) == 130 and "Traceback" not in said and "KeyboardInterrupt" not in said

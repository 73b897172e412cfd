"""From settings to results: set-up, loop, evaluation, history, checkpoint, fit, compare."""

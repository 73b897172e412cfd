"""How often the 95 % intervals of `focusfl.intervals` hold the truth: `python -m focusfl.coverage`."""

"""How often 95 % intervals of FAA hold the truth: `python -m focusfl.research.coverage`."""

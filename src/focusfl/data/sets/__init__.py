"""Data sets with a name, one per file: each function distributes one among agents."""

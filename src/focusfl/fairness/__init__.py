"""How fair: metrics, and how certain they are."""

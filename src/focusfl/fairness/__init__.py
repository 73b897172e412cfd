"""How fair a model is: metrics, and how certain they are."""

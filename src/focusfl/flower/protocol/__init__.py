"""The messages between server and nodes, over any of Flower's grids."""

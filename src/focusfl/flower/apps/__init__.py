"""Flower apps: a node, a server, and both by configuration."""

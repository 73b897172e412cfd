"""What server and nodes say to each other, over any of Flower's grids."""

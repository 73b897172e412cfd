"""Secure sums: the server learns the sum of the agents' uploads and no single upload (docs/secure-sums.md).

fixed_point  floats as 64-bit integers whose sum cannot overflow
crypto       key agreement, encryption, secret sharing, masks
messages     what node and server send each other, and how it is checked
node         the node's side of the protocol of Bonawitz et al. 2017
server       the server's side
rounds       the protocol as a round of training over Flower
"""

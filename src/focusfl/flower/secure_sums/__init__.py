"""Secure sums: the server learns the sum of the agents' uploads and no single upload (docs/secure-sums.md).

fixed_point  floats as 64-bit integers whose sum cannot overflow
crypto       key agreement, encryption, secret sharing, masks
identity     signing keys, certificates, and what a node was installed with
messages     what node and server send each other, what is hashed and signed, and how it is checked
node         the node's side of the protocol of Bonawitz et al. 2017, against a server that may lie
server       the server's side
"""

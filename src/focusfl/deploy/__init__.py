"""A deployment of one's own: certificates, keys, start scripts, a guarded SuperLink. docs/deploy.md shows it.

setup     init, add, renew: write the folders of a deployment
registry  register, nodes, revoke: who takes part
operator  Flower's own command line with the operator's certificate
"""

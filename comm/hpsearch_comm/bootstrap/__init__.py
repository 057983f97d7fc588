"""How the ranks of a group come together: secret, addresses, proof of identity, connections."""

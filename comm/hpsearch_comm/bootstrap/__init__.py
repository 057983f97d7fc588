"""How the ranks of a group meet: secret, addresses, proof of identity, connections."""

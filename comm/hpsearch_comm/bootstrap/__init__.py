"""How a group starts: secret, exchange of addresses, handshake, connections."""

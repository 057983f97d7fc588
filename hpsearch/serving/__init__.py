"""Services over HTTP: who may send which request, and the server."""

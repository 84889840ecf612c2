"""llama-server's own dialect."""

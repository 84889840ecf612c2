"""One script per claim about speed or size; see README.md."""

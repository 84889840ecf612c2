"""Recorded requests of agents: the format, its recorder, and what an answer on the wire tells."""

"""Replays recorded requests of agents against a server, and says what was computed twice."""

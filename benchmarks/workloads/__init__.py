"""Generators of traces: what agents send, written from text of our own."""

"""Sends chats to a server over HTTP: for `milepost warm`, and for the benchmarks."""

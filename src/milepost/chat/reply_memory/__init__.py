"""Replies that were sampled here, kept in memory and on disk."""

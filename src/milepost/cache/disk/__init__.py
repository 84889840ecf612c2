"""The disk tier: files, index, and what is read and written."""

"""Formats of tool calls: modules that read, write and recognise them."""

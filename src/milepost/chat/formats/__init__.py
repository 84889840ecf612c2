"""How models write replies and tool calls: one module for each format, and what they share."""

"""What becomes of a reply: rules and grammars before it, the stream parser after it."""

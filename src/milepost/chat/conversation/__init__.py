"""What a conversation is: checked messages, media parts, breakpoints, control-token guard."""

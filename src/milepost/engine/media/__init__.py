"""Images and audio in the engine."""

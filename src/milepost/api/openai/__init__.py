"""OpenAI's dialect."""

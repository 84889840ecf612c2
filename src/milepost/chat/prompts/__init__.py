"""From a rendered conversation to tokens, boundaries and the replies in it."""

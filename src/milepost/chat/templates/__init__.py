"""Chat templates: how they are run, and what is learnt from them."""

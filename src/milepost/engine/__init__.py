"""One process per loaded model: a llama context and one synchronous loop around it."""

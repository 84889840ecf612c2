"""milepost: an LLM inference server for coding agents that prefills no token twice."""

__version__ = "0.1.0"

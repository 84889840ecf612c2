"""Tests of milepost: unit, binding, engine and server."""

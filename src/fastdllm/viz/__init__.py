"""Traces and canvases for people to look at."""

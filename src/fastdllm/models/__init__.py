"""One transformer, a table of families, and the way from a folder to a loaded model."""

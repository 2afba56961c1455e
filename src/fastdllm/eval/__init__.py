"""Tasks and their scores: a small file each."""

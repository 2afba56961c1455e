"""Pictures: from a file to the embeddings that stand in a prompt."""

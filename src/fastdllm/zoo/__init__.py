"""The embedded models: weights, tokenizer and card each, loadable by name."""

"""Training small masked diffusion models, from scratch or from a checkpoint folder."""

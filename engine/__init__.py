"""Training engine for energy-based latent variable models."""

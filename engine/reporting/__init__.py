"""Runs as one HTML page, and as pages of a small server."""

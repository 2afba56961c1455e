"""Measurements and figures."""

"""Guessing ahead: proposers, what guessing costs and brings, and the choice of how much to guess."""

"""Carries out resources: recording, training, what they report and what they leave behind."""

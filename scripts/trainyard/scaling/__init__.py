"""Scaling studies: launching each scale, and the table that compares them."""

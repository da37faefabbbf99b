from loops import data, staged

__all__ = ["data", "staged"]
